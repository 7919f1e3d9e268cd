"""From the tensors that a network multiplies with or adds back to the parameters that they are computed from."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import NonFiniteError, UnsupportedError
from lipkit.nn.core.constrained import sites
from lipkit.nn.residual._base import ResidualLayer

Source = Callable[[], Tensor]


@final
class FreeNumbers:
    """The trained tensors w of a condensed copy of a model as functions w = P(theta) of the model's parameters.

    What is released is a noised gradient of w. theta is public, so is the linear map dP(theta)', and

        d theta = dP(theta)' (noised d w)

    is free of charge, however large dP is. Cost: each constrained weight once a step, and its derivative.

    Args:
        model: The model.
        plain: Its copy by `lipkit.nn.condense`, whose tensors `write` keeps up to date.
    """

    def __init__(self, model: nn.Module, plain: nn.Module) -> None:
        self._model, self._plain = model, plain
        self._trained = {name for name, p in model.named_parameters() if p.requires_grad}
        self._constants = {name: t.detach().clone() for name, t in _constants(model)}
        self._sources = _sources(model, plain)
        self._made: dict[str, Tensor] = {}
        tensors = self._compute()
        wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
        live = [w for w in tensors.values() if w.requires_grad]
        found = torch.autograd.grad([w.sum() for w in live], list(wanted.values()), allow_unused=True)
        if missing := [name for name, g in zip(wanted, found, strict=True) if g is None]:
            raise UnsupportedError(
                f"{', '.join(missing)}: no tensor that the network multiplies with or adds is computed from these, so "
                "no rule bounds their gradients; freeze them with requires_grad_(False)."
            )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters of the model."""
        return [p for p in self._model.parameters() if p.requires_grad]

    def write(self) -> None:
        """Compute the tensors from the parameters as they are, and write them into the condensed copy."""
        self._refuse_changes()
        self._made = self._compute()
        with torch.no_grad():
            for name, made in self._made.items():
                if not bool(torch.isfinite(made).all()):
                    raise NonFiniteError(f"{name} has NaN or infinite entries; lower the learning rate and start anew.")
                self._plain.get_parameter(name).copy_(made)

    def pull_back(self, gradients: Mapping[str, Tensor]) -> None:
        """Set the gradients of the parameters from those of the tensors, which are noised already."""
        for p in self._model.parameters():
            p.grad = None
        live = [name for name, made in self._made.items() if made.requires_grad]
        torch.autograd.backward(
            [self._made[name] for name in live], [gradients[name].to(self._made[name]) for name in live]
        )
        self._made = {}

    def _compute(self) -> dict[str, Tensor]:
        with torch.enable_grad():
            return {name: source() for name, source in self._sources.items()}

    def _refuse_changes(self) -> None:
        """Constants were read once; a limit that does not know of a change would be none."""
        if {name for name, p in self._model.named_parameters() if p.requires_grad} != self._trained:
            raise UnsupportedError("Other parameters are trained than at the start; make a new Training of the model.")
        for name, tensor in _constants(self._model):
            if name not in self._constants or not torch.equal(tensor, self._constants[name]):
                raise UnsupportedError(
                    f"{name} is not trained and was changed since the start, which the limits do not know of; make a "
                    "new Training of the model."
                )


def _constants(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*((n, p) for n, p in model.named_parameters() if not p.requires_grad), *model.named_buffers()]


def _sources(model: nn.Module, plain: nn.Module) -> dict[str, Source]:
    own = dict(model.named_parameters(remove_duplicate=False))
    computed: dict[str, Source] = {
        f"{site.path}.{site.name}".lstrip("."): partial(site.constraint.compute, site.raw) for site in sites(model)
    }
    for path, module in model.named_modules():
        if isinstance(module, ResidualLayer):
            computed[f"{path}.coefficient".lstrip(".")] = partial(_step_sizes, module)
    found: dict[str, Source] = {}
    for name, p in plain.named_parameters():
        if not p.requires_grad:
            continue
        if name not in computed and name not in own:
            raise UnsupportedError(
                f"{name} is computed by a layer whose way back to its parameters is not known here; freeze the layer, "
                "or use lipkit.nn.Linear, a convolution or a residual layer in its place."
            )
        found[name] = computed[name] if name in computed else partial(_itself, own[name])
    return found


def _step_sizes(layer: ResidualLayer) -> Tensor:
    return layer.coefficient_of(layer.weight)


def _itself(parameter: Tensor) -> Tensor:
    return parameter
