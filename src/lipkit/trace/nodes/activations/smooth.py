"""Activations with a derivative, described by three curves."""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.trace.nodes.activations.curve import Curve, Interval
from lipkit.trace.nodes.pointwise import Activation


@final
@dataclass(frozen=True, eq=False)
class Smooth(Activation):
    """A twice differentiable function, by the curves of f, f' and f''.

    The slope curve turns where f'' = 0, so its range on an interval is that of its ends and of the inflections inside:
    exact up to rounding. The same holds for the other two.
    """

    label: str
    value: Curve
    slope: Curve
    bend: Curve

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.value.at(z)

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self.slope.range(low, high)

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self.value.range(low, high)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self.bend.range(low, high)

    def __str__(self) -> str:
        return self.label


@final
@dataclass(frozen=True, eq=False)
class Piecewise(Activation):
    """A continuous function that is `pieces[i]` between `knots[i - 1]` and `knots[i]`.

    Each piece is smooth on its interval; its curves are only asked there, and each limit belongs to its outer end.
    """

    label: str
    knots: tuple[float, ...]
    pieces: tuple[Smooth, ...]

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        y = self.pieces[-1](z)
        for knot, piece in reversed(list(zip(self.knots, self.pieces, strict=False))):
            # The other piece gets an argument of its own side: an overflow there would make the gradient NaN.
            y = torch.where(z < knot, piece(z.clamp(max=knot)), y)
        return y

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self._hull([piece.slope for piece in self.pieces], low, high)

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self._hull([piece.value for piece in self.pieces], low, high)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        under, over = self._hull([piece.bend for piece in self.pieces], low, high)
        for knot, jump in zip(self.knots, self._jumps(), strict=True):
            inside = (low < knot) & (knot < high)
            under = torch.where(inside, -torch.inf, under) if jump < 0 else under
            over = torch.where(inside, torch.inf, over) if jump > 0 else over
        return under, over

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(knot for knot, jump in zip(self.knots, self._jumps(), strict=True) if jump)

    def _hull(self, curves: list[Curve], low: Tensor, high: Tensor) -> Interval:
        ends = (-torch.inf, *self.knots, torch.inf)
        under, over = torch.full_like(low, torch.inf), torch.full_like(low, -torch.inf)
        for curve, (left, right) in zip(curves, pairwise(ends), strict=True):
            met = torch.where(low < high, (low < right) & (high > left), (low <= right) & (high >= left))
            smallest, largest = curve.range(low.clamp(left, right), high.clamp(left, right))
            under = torch.where(met, torch.minimum(under, smallest), under)
            over = torch.where(met, torch.maximum(over, largest), over)
        return under, over

    def _jumps(self) -> list[float]:
        """By how much the slope jumps at each knot."""
        found: list[float] = []
        for knot, (before, after) in zip(self.knots, pairwise(self.pieces), strict=True):
            at = torch.tensor(knot, dtype=torch.float64)
            found.append(after.slope.at(at).item() - before.slope.at(at).item())
        return found

    def __str__(self) -> str:
        return self.label
