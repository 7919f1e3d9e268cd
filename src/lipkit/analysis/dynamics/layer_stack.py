"""Layers whose weights have one shape, stacked: their vectors follow them, and what a step does is seen, together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.dynamics.tracked_layers import Measurement, TrackedLayer, products_are_cheap
from lipkit.errors import NotProvenError
from lipkit.linops import Dense

# Rounds of power iteration that follow the singular vectors through one step of training.
_ROUNDS = 5


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Singular vectors of b layers that are carried from step to step, and the norms they show."""

    left: Float[Tensor, "b ..."]
    right: Float[Tensor, "b ..."]
    value: Float[Tensor, " b"]


@final
class LayerStack:
    """Layers that are seen together: matrices of one shape, type and device, or one layer of any kind.

    Nothing here waits for the device, as long as the layers are matrices.
    """

    def __init__(self, places: Sequence[int], layers: Sequence[TrackedLayer]) -> None:
        self.places = places
        self._layers = layers
        self._measured: Sequence[Measurement] = ()
        self._before: Tensor | None = None
        self._now: Tensor | None = None

    def copy(self) -> Float[Tensor, "b ..."]:
        """A copy of all weights as they are now."""
        return torch.stack([layer.weight() for layer in self._layers])

    def open(self, measured: Sequence[Measurement], weights: Float[Tensor, "b ..."]) -> None:
        """Start from what was measured at these weights, which nobody changes."""
        self._measured = measured
        self.at: Tensor = weights
        value = torch.tensor([one.value for one in measured], dtype=torch.float64)
        self.pairs: Pairs = Pairs(
            torch.stack([one.left for one in measured]).to(weights),
            torch.stack([one.right for one in measured]).to(weights),
            value.to(weights, non_blocking=True),
        )
        self._now = None

    def before_step(self) -> None:
        """Keep the weights."""
        self._before = self.copy()

    def first_step(self) -> tuple[Float64[Tensor, "3 b"], Float64[Tensor, "b ..."]]:
        """u'X v / sigma, ||X||_F and D^2 sigma[X, X] of the step X from where was measured, in float64, and X."""
        change = self._change().to(torch.float64)
        rows = list(zip(self._layers, self._measured, change, strict=True))
        slopes = [(one.left * layer.operator(x).apply(one.right)).sum() / one.value for layer, one, x in rows]
        forms = [_form(one, x) for _, one, x in rows]
        return torch.stack([torch.stack(slopes), _lengths(change), torch.stack(forms)]), change

    def later_step(self) -> Float[Tensor, "2 b"]:
        """u'X v / sigma and ||X||_F of the step X, with the vectors that follow."""
        change, pairs = self._change(), self.pairs
        slopes = (pairs.left * self._apply(change, pairs.right)).flatten(1).sum(1) / pairs.value
        return torch.stack([slopes, _lengths(change)])

    def follow(self) -> None:
        """Let the vectors follow the weights through a step without a measurement, by power iteration."""
        assert self._now is not None, "a step comes first"
        left = self.pairs.left
        for _ in range(_ROUNDS - 1):
            left, _ = _normalise(self._apply(self._now, self._adjoint(self._now, left)))
        right, _ = _normalise(self._adjoint(self._now, left))
        left, value = _normalise(self._apply(self._now, right))
        self.pairs = Pairs(left, right, value)
        self._now = None

    def _change(self) -> Tensor:
        assert self._before is not None, "before_step comes first"
        # One weight is followed where it is, before anybody changes it again.
        self._now = self._layers[0].weight().unsqueeze(0) if len(self._layers) == 1 else self.copy()
        change = self._now - self._before
        self._before = None
        return change

    def _apply(self, weights: Tensor, right: Tensor) -> Tensor:
        if len(self._layers) == 1:
            return self._layers[0].operator(weights[0]).apply(right[0]).unsqueeze(0)
        return torch.bmm(weights.flatten(2), right.unsqueeze(2)).squeeze(2)

    def _adjoint(self, weights: Tensor, left: Tensor) -> Tensor:
        if len(self._layers) == 1:
            return self._layers[0].operator(weights[0]).adjoint(left[0]).unsqueeze(0)
        return torch.bmm(left.unsqueeze(1), weights.flatten(2)).squeeze(1)


def stack_layers(layers: Sequence[TrackedLayer]) -> list[LayerStack]:
    """Matrices of one shape, type and device together where that saves time, all other layers alone."""
    groups: dict[object, list[int]] = defaultdict(list)
    for place, layer in enumerate(layers):
        weight = layer.weight()
        matrix = layer.reading.gives_matrices and isinstance(layer.operator(weight), Dense)
        together = matrix and products_are_cheap([weight])
        kind = (tuple(weight.shape), weight.dtype, weight.device) if together else place
        groups[kind].append(place)
    return [LayerStack(places, [layers[i] for i in places]) for places in groups.values()]


def _lengths(stack: Float[Tensor, "b ..."]) -> Float[Tensor, " b"]:
    return torch.linalg.vector_norm(stack.flatten(1), dim=1)


def _normalise(stack: Float[Tensor, "b ..."]) -> tuple[Float[Tensor, "b ..."], Float[Tensor, " b"]]:
    lengths = _lengths(stack)
    return stack / lengths.reshape(-1, *(1 for _ in stack.shape[1:])), lengths


def _form(measured: Measurement, change: Float64[Tensor, "..."]) -> Float64[Tensor, ""]:
    zero = torch.zeros((), dtype=torch.float64, device=change.device)
    # Of an operator the form is an iteration, which waits for the device anyway.
    if measured.gram is None and not bool(change.any()):
        return zero
    try:
        return measured.form(change)
    except NotProvenError:
        # A repeated value that splits has no second derivative: what it does is booked as rest.
        return zero
