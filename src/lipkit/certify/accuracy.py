"""A model on a data set: clean, certified and attacked accuracy, on one process or many, resumable."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.bounds.fingerprint import sha256_of, state_prints
from lipkit.certify._shards import Data, Place, batches, described
from lipkit.certify.attacks import Attack
from lipkit.certify.attacks.coarse import coarse_products
from lipkit.certify.counterexample import contradiction, provably_changed, seen_changed
from lipkit.certify.disproof import refuse_disproved
from lipkit.certify.evaluation import Evaluation
from lipkit.certify.forward import Forward, Logits
from lipkit.certify.radius import Radii, radius, require_certifying
from lipkit.certify.records import Records, Sample
from lipkit.data._seed import check_seed, derived
from lipkit.errors import ArgumentError, MetricError, NonFiniteError, RecordError
from lipkit.linops.row_norms import vector_norms
from lipkit.nn.freeze import frozen
from lipkit.regions import Ball, Box
from lipkit.trace.canonical import evaluating

# A constant for all samples, or the constants around the inputs of a batch.
Constant = Bound | Callable[[Tensor], Bound]


def accuracy(
    model: nn.Module,
    data: Data,
    bound: Constant,
    eps: Sequence[float],
    *,
    norm: float = 2.0,
    attack: Attack | None = None,
    logits: Callable[[Tensor], Logits] | None = None,
    records: str | Path | None = None,
    level: float = 0.95,
    seed: int = 0,
    name: str = "",
    progress: Callable[[int, int | None], None] | None = None,
) -> Evaluation:
    """Clean, certified and attacked accuracy of a classifier at the radii `eps` in l_`norm`.

    `data` is a DataLoader, a Dataset or any iterable of (inputs, labels) in a fixed order; inputs are those the model
    takes, so a normalisation belongs into the model, where the constant counts it. `bound` is a constant of the model
    (see `radius`), or a function that gives one around the inputs of a batch, such as
    `lambda x: bounds.Local(bounds.DAG())(network, Ball(x, 0.5))`; with `records` such a function needs a `name`, by
    which stored results know it again. Logits are evaluated in float64 with their rounding error (`Forward`), unless
    `logits` gives them.

    A bound that the first inputs disprove, one of another model for example, is refused (`refuse_disproved`).
    With `attack`, samples that are classified correctly are attacked at every radius. An attack that provably changes
    the class inside a certified radius stops the evaluation with a `BrokenCertificateError`; the counter-example is
    saved in `records` or in the working directory.

    With `records`, results are appended to that folder as they come and an interrupted run continues where it was.
    Under torch.distributed every process takes its share of the samples, and all return the whole evaluation; `records`
    must then be a folder that all processes see. The table is the same for any number of processes and interruptions:
    the attack draws from `seed` and the place of a batch. `progress` is called with the samples done and their number
    in this process.

    Guarantee: certified <= true robust accuracy <= attacked, on these samples, with the bound's failure probability;
    the second as far as attacks are proven to succeed (`Evaluation.unproven`).
    Cost: one float64 evaluation of each sample, and the attack.
    """
    eps = check_radii(eps)
    if not callable(bound):
        require_certifying(bound)
    if not norm >= 1:
        raise MetricError(f"A norm has an exponent p in [1, inf], got norm={norm}.")
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"An evaluation needs a torch.nn.Module, got {type(model).__name__}; wrap a function in one."
        )
    if attack is not None and not isinstance(attack, Attack):
        raise ArgumentError(f"`attack` is one of lipkit.certify.attacks, such as PGD(eps=0.5), got {attack!r}.")
    if attack is not None and attack.norm != norm:
        raise MetricError(f"The radii are in l{norm:g} and the attack in l{attack.norm:g}; use one norm for both.")
    check_seed(seed)
    place = Place.here()
    model_in = _Model(model, logits)
    settings = {
        **_settings(model, bound, eps, norm, attack), "level": level, "seed": seed, "name": name,
        "logits": "given" if logits is not None else "float64", "data": described(data),
    }  # fmt: skip
    place.agree(settings)
    if records is not None and not isinstance(bound, Bound) and not name:
        raise ArgumentError("Results with a function for `bound` can only be resumed under a `name`; give one.")
    store = None
    # The first writes the settings, the others find them.
    for turn in (True, False):
        if records is not None and (place.rank == 0) is turn:
            store = Records(records, settings, place.rank)
        place.meet()
    done = {} if store is None else store.read()
    expected = 0 if attack is None else len(eps)
    if wrong := [sample.index for sample in done.values() if len(sample.broken) != expected]:
        raise RecordError(f"{records} has attacks at other radii for sample {wrong[0]}; give another folder.")
    place.meet()
    fresh: list[Sample] = []
    seen = 0
    # Held weights: an attack asks for them hundreds of times, and they do not change.
    with evaluating(model), frozen(model):
        for indices, inputs, labels, total in batches(data, place, done.keys()):
            x, y = model_in.placed(inputs, labels)
            if not fresh and isinstance(bound, Bound):
                refuse_disproved(model, model_in.logits, x, bound)
            run = _Batch(model_in, x, y, indices, norm, seed, Path(records or "."))
            found = [sample for sample in run.samples(bound, eps, attack) if sample.index not in done]
            fresh += found
            if store is not None:
                store.append(found)
            seen += len(found)
            if progress is not None:
                progress(seen, total)
    place.meet()
    samples = list(store.read().values()) if store is not None else place.gathered(fresh)
    return Evaluation.of(samples, eps, norm, level, bound.failure if isinstance(bound, Bound) else 0.0)


class _Model:
    """The model, where it lives, and its logits; captured at the first batch."""

    def __init__(self, model: nn.Module, logits: Callable[[Tensor], Logits] | None) -> None:
        self.module = model
        self._logits = logits
        parameter = next(model.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device
        self.dtype = torch.float32 if parameter is None else parameter.dtype

    def placed(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not inputs.is_floating_point():
            raise ArgumentError(f"Inputs must be floating point, got {inputs.dtype}; convert them as in training.")
        if not bool(torch.isfinite(inputs).all()):
            raise NonFiniteError("Some inputs are NaN or infinite, so nothing can be said of them; clean the data.")
        return inputs.to(self._device), labels.to(self._device)

    def logits(self, inputs: Tensor) -> Logits:
        if self._logits is None:
            # A copy, which is an ordinary tensor also where the data were made in inference mode.
            self._logits = Forward(self.module, inputs[:1].to(self.dtype, copy=True))
        return self._logits(inputs)


@dataclass(frozen=True, eq=False)
class _Batch:
    """One batch on its way through the model."""

    model: _Model
    x: Float[Tensor, "batch ..."]
    y: Int[Tensor, " batch"]
    indices: Sequence[int]
    norm: float
    seed: int
    folder: Path

    def samples(self, bound: Constant, eps: Sequence[float], attack: Attack | None) -> list[Sample]:
        """What is found of each sample."""
        x, y = self.x, self.y
        found = self.model.logits(x)
        constant = bound if isinstance(bound, Bound) else bound(x)
        radii = radius(found.value, y, constant, error=found.error, at=x).in_norm(self.norm, math.prod(x.shape[1:]))
        predicted = found.value.argmax(1)
        broken: list[Tensor] = []
        right = predicted == y
        unproven = torch.zeros_like(right)
        for e in eps if attack is not None else ():
            assert attack is not None
            # What a smaller radius broke stays broken: the smaller ball is part of the larger one.
            seen, sure = self._attacked(right, radii, replace(attack, eps=e))
            unproven |= seen & ~sure
            right = right & ~seen
            broken.append(~right)
        rows = torch.stack(broken, dim=1).tolist() if broken else [()] * len(x)
        columns = (self.indices, y.tolist(), predicted.tolist(), radii.value.tolist(), rows, unproven.tolist())
        # A constant computed for this batch may fail with it: each sample carries that, which counts it often enough.
        own = 0.0 if isinstance(bound, Bound) else radii.failure
        return [Sample(i, a, b, r, tuple(row), own, u) for i, a, b, r, row, u in zip(*columns, strict=True)]

    def _attacked(
        self, right: Bool[Tensor, " batch"], radii: Radii, attack: Attack
    ) -> tuple[Bool[Tensor, " batch"], Bool[Tensor, " batch"]]:
        """Of which samples that are right an attack changes the class, and of which it provably does."""
        seen, sure = torch.zeros_like(right), torch.zeros_like(right)
        places = right.nonzero().flatten()
        if not len(places):
            return seen, sure
        x, y = self.x[places], self.y[places]
        generator = torch.Generator().manual_seed(derived(self.seed, self.indices[0]))
        with coarse_products(x.device):
            moved = attack(self.model.module, x.to(self.model.dtype), y, generator=generator)
        after = self.model.logits(moved)
        indices = [self.indices[i] for i in places.tolist()]
        contradiction(x, moved, y, after, radii.value[places], self.norm, indices, self.folder)
        # In another type the attack may have begun elsewhere; only what is in the ball of the input counts.
        near = vector_norms((moved.double() - x.double()).flatten(1), self.norm) <= attack.eps
        inside = near if x.dtype != moved.dtype else torch.ones_like(near)
        # What only rounding may have changed has not been broken.
        seen[places], sure[places] = seen_changed(after, y) & inside, provably_changed(after, y) & inside
        return seen, sure


def check_radii(eps: Sequence[float]) -> tuple[float, ...]:
    """The radii, if there are some and they are finite, >= 0 and in increasing order."""
    if isinstance(eps, str) or not isinstance(eps, Iterable):
        raise ArgumentError(f"`eps` lists radii, such as [36 / 255], got {eps!r}.")
    found = tuple(float(e) for e in eps)
    if not found or not all(math.isfinite(e) and e >= 0 for e in found) or list(found) != sorted(set(found)):
        raise ArgumentError(f"`eps` lists radii >= 0 in increasing order, got {list(eps)}.")
    return found


def _settings(
    model: nn.Module, bound: Constant, eps: Sequence[float], norm: float, attack: Attack | None
) -> dict[str, Any]:
    # Buffers that a state dictionary leaves out decide as much as those it holds.
    every = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {one.name: one.sha256 for one in state_prints(every)}
    return {
        "model": state,
        "structure": str(model),
        "bound": _told(bound) if isinstance(bound, Bound) else "a function",
        "eps": list(eps),
        "norm": norm if math.isfinite(norm) else "inf",
        "attack": None if attack is None else {"is": str(attack), **_numbers(attack)},
    }


def _numbers(attack: Attack) -> dict[str, str]:
    """The fields of an attack that are numbers: it may not tell all of them, its box for example."""
    values = {field.name: getattr(attack, field.name) for field in fields(attack)}
    return {name: str(value) for name, value in values.items() if value is None or isinstance(value, float | int)}


def _told(bound: Bound) -> dict[str, Any]:
    """A bound as it is found again: everything a radius depends on."""
    match bound.region:
        case Ball(center, size, p):
            region = ["ball", sha256_of(center), size, str(p)]
        case Box(low, high):
            region = ["box", sha256_of(low), sha256_of(high)]
        case _:
            region = [str(bound.region)]
    return {
        "log_value": [x.hex() for x in bound.log_value.detach().flatten().tolist()],
        "kind": bound.kind.value,
        "metric": str(bound.metric),
        "of": str(bound.of),
        "region": region,
        "failure": bound.failure,
    }
