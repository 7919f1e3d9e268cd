"""From a model and its evaluation to everything a report shows."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from lipkit._runtime import evaluating
from lipkit.analysis.dynamics.stored_history import StoredHistory
from lipkit.bound import Bound
from lipkit.bounds.certificates.issue import table_on
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.bounds.lipschitz import network_of
from lipkit.certify import Evaluation, SampleResult, accuracy, find_warnings
from lipkit.certify.attacks import Attack
from lipkit.data import Examples
from lipkit.errors import ArgumentError, BrokenCertificateError
from lipkit.nn import Sequential
from lipkit.report.results.about import About, AttackUsed, DataUsed
from lipkit.report.results.contents import ClassRow, Constant, Contents, Entry, Failure, Outcomes, Plane
from lipkit.report.results.gradient_lengths import gradient_norms
from lipkit.report.results.image_gallery import gallery, why_no_gallery
from lipkit.report.results.privacy_claim import PrivacyClaim
from lipkit.report.results.recount import curve, histogram
from lipkit.report.results.spectra import spectra
from lipkit.trace import Network

# Points of a side of the map; test points shown on it.
_SIDE, _SHOWN = 161, 300
# How far the map goes beyond the test points, as a part of their range.
_MARGIN = 0.05


def in_the_plane(data: Examples) -> bool:
    """Whether the inputs are points that a map can show."""
    return tuple(data.inputs.shape[1:]) == (2,)


def plane(model: nn.Module, data: Examples, bound: Bound) -> Plane:
    """The class that the model gives to each point of a grid around the test points, and its certified radius.

    Radii are those of `certify.accuracy`, rounding included, of the class that the model itself gives.
    Cost: an evaluation of 161 x 161 points.
    """
    low, high = data.inputs.amin(0), data.inputs.amax(0)
    room = _MARGIN * (high - low)
    across, up = (
        torch.linspace(float(a), float(b), _SIDE, dtype=torch.float64)
        for a, b in zip(low - room, high + room, strict=True)
    )
    grid = torch.cartesian_prod(up, across).flip(1).to(data.inputs)
    parameter = next(model.parameters(), None)
    grid = grid if parameter is None else grid.to(parameter.device)
    with torch.no_grad(), evaluating(model):
        given = model(grid).argmax(1)
    found = accuracy(model, [(grid, given)], bound, (1.0,), p=float(bound.metric.p_in)).samples
    shown = data.at(range(min(_SHOWN, len(data))))
    return Plane(
        across=tuple(across.tolist()),
        up=tuple(up.tolist()),
        predicted=tuple(one.predicted for one in found),
        radii=tuple(float(one.radius) for one in found),
        points=tuple((float(x), float(y)) for x, y in shown.inputs),
        labels=tuple(map(int, shown.labels)),
    )


T = TypeVar("T")
# Steps of a profile that a page shows.
_TIMES = 200
# Samples that the gradient norms are measured on.
_BATCH = 256


def gather_contents(
    model: nn.Module,
    test: Examples,
    evaluation: Evaluation,
    bound: Bound,
    journal: Sequence[Mapping[str, Any]],
    about: About,
    attack: Attack | None,
    profile: StoredHistory | None = None,
    privacy: PrivacyClaim | None = None,
) -> Contents:
    """Everything the report of a model shows; what is not in the evaluation is measured here.

    `evaluation` is of `test`, in its order, `bound` the constant and `attack` the search it was made with; `profile` is
    that of the training, which is shown at 200 steps at most, and `privacy` what a private training claims.
    Measured are: the table of layers (of the whole map, by one fold over the network), singular values, gradient norms
    over depth, and the neighbours of single images. A part that fails becomes one of `failures`, with its reason, and
    the others are there all the same; but a certificate that a neighbour disproves stops the report with a
    `BrokenCertificateError`.
    Cost: seconds for small models; the singular values are capped at about ten.
    """
    _check(test, evaluation)
    parts = _Parts()
    example = _on_device_of(model, test.at([0]))
    with torch.no_grad():
        network = parts.try_to_make("network", lambda: network_of(open_chains(model), example))
    missing = why_no_gallery(test)
    samples = evaluation.samples
    return Contents(
        about=about,
        data=DataUsed.of(test),
        attack=None if attack is None else AttackUsed.of(attack),
        precision=_precision(model),
        warnings=find_warnings(evaluation, test.inputs, bound, test.classes),
        constant=Constant.of_bound(bound),
        classes=test.classes,
        eps=evaluation.eps,
        p=evaluation.p,
        level=evaluation.level,
        failure=evaluation.failure,
        unproven=evaluation.unproven,
        local=evaluation.local,
        overall=evaluation.overall,
        by_class=tuple(ClassRow(test.classes[k], shares) for k, shares in evaluation.classes.items()),
        outcomes=_outcomes(samples),
        curve=curve(evaluation),
        histogram=histogram(evaluation),
        layers=None if network is None else parts.try_to_make("layers", lambda: _layers(network, bound)),
        spectra=None if network is None else parts.try_to_make("spectra", lambda: spectra(network)),
        depth=parts.try_to_make("depth", lambda: gradient_norms(model, *_batch(model, test, samples))),
        training=parts.try_to_make("training", lambda: tuple(map(_entry, journal))),
        gallery=None
        if missing
        else parts.try_to_make("gallery", lambda: gallery(model, test, samples, evaluation.p, about.seed)),
        no_gallery=missing,
        plane=parts.try_to_make("plane", lambda: plane(model, test, bound)) if in_the_plane(test) else None,
        profile=None if profile is None else profile.thinned(_TIMES),
        privacy=privacy,
        failures=tuple(parts.failures),
    )


def open_chains(model: nn.Module) -> nn.Module:
    """The same function with every `lipkit.nn.Sequential` as torch's, which promises nothing as a whole.

    A network captured from it has a row for each layer, where the chain would be one node. Layers, their promises and
    their tensors are those of the model itself, which is left as it is; blocks that are no chains (residual ones, for
    example) stay whole, because their constant is smaller than what their parts say. Guarantee: it computes the same.
    Cost: one small object for each module that holds a chain.
    """
    return _open_module(model, {})


def _open_module(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    # A module that stands in several places stays one module.
    if module not in known:
        plain = module.to_plain() if isinstance(module, Sequential) else module
        inner = {name: None if part is None else _open_module(part, known) for name, part in plain._modules.items()}
        if any(inner[name] is not part for name, part in plain._modules.items()):
            plain = copy.copy(plain) if plain is module else plain
            plain._modules = inner
        known[module] = plain
    return known[module]


class _Parts:
    """Makes parts one by one and notes those that fail."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []

    def try_to_make(self, part: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except BrokenCertificateError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever one part raises, the others are worth having
            self.failures.append(Failure(part, describe_error(error)))
            return None


def describe_error(error: Exception) -> str:
    """The first line of an error, with its type where it is not one of lipkit's sentences."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first if type(error).__module__ == "lipkit.errors" else f"{type(error).__name__}: {first}"


def _check(test: Examples, evaluation: Evaluation) -> None:
    for sample in evaluation.samples:
        if not 0 <= sample.index < len(test) or int(test.labels[sample.index]) != sample.label:
            raise ArgumentError(
                f"The evaluation is of other data: its sample {sample.index} has label {sample.label}, and the "
                f"{len(test)} examples given have none such; give the examples that were evaluated, in their order."
            )


def _precision(model: nn.Module) -> str:
    """The floating types of the weights, in words; those of a model without weights are those of its inputs."""
    kinds = {str(part.dtype).removeprefix("torch.") for part in model.state_dict().values() if part.is_floating_point()}
    return " and ".join(sorted(kinds)) or "that of the inputs"


def _on_device_of(model: nn.Module, test: Examples) -> torch.Tensor:
    parameter = next(model.parameters(), None)
    return test.inputs if parameter is None else test.inputs.to(parameter.detach())


def _batch(model: nn.Module, test: Examples, samples: Sequence[SampleResult]) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = test.at([sample.index for sample in samples[:_BATCH]])
    inputs = _on_device_of(model, chosen)
    return inputs, chosen.labels.to(inputs.device)


def _layers(network: Network, bound: Bound) -> tuple[LayerRow, ...]:
    with torch.no_grad():
        return tuple(table_on(network, bound.metric, bound.region, savings=True))


def _outcomes(samples: Sequence[SampleResult]) -> Outcomes:
    rows = ((s.index, s.label, s.predicted, float(s.radius), s.broken, s.unproven) for s in samples)
    return Outcomes(*zip(*rows, strict=True))


def _entry(line: Mapping[str, Any]) -> Entry:
    return Entry(int(line["step"]), _number(line.get("loss")), _number(line.get("constant")))


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
