"""Activations with a derivative, described by three curves."""

from collections.abc import Callable
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

    Each piece is only asked on its interval, has no kink inside of it, and each limit belongs to its outer end.
    """

    label: str
    knots: tuple[float, ...]
    pieces: tuple[Activation, ...]

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        ends = (-torch.inf, *self.knots, torch.inf)
        # Each piece gets an argument of its own side: what overflows elsewhere would make the gradient NaN.
        first, *others = (piece(z.clamp(*side)) for piece, side in zip(self.pieces, pairwise(ends), strict=True))
        y = first
        for knot, other in zip(self.knots, others, strict=True):
            y = torch.where(z < knot, y, other)
        return y

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self._hull([piece.slopes for piece in self.pieces], low, high)

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self._hull([piece.values for piece in self.pieces], low, high)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        under, over = self._hull([piece.bends for piece in self.pieces], low, high)
        for knot, (least, most) in zip(self.knots, self._jumps(), strict=True):
            inside = (low < knot) & (knot < high)
            under = torch.where(inside, -torch.inf, under) if least < 0 else under
            over = torch.where(inside, torch.inf, over) if most > 0 else over
        return under, over

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(knot for knot, jump in zip(self.knots, self._jumps(), strict=True) if any(jump))

    def _hull(self, ranges: list[Callable[[Tensor, Tensor], Interval]], low: Tensor, high: Tensor) -> Interval:
        ends = (-torch.inf, *self.knots, torch.inf)
        under, over = torch.full_like(low, torch.inf), torch.full_like(low, -torch.inf)
        for piece, (left, right) in zip(ranges, pairwise(ends), strict=True):
            met = torch.where(low < high, (low < right) & (high > left), (low <= right) & (high >= left))
            smallest, largest = piece(low.clamp(left, right), high.clamp(left, right))
            under = torch.where(met, torch.minimum(under, smallest), under)
            over = torch.where(met, torch.maximum(over, largest), over)
        return under, over

    def _jumps(self) -> list[tuple[float, float]]:
        """By how much the slope jumps at each knot, at least and at most."""
        found: list[tuple[float, float]] = []
        for knot, (before, after) in zip(self.knots, pairwise(self.pieces), strict=True):
            at = torch.tensor(knot, dtype=torch.float64)
            (a, b), (c, d) = (_slope_at(piece, at) for piece in (before, after))
            found.append((c - b, d - a))
        return found

    def __str__(self) -> str:
        return self.label


def _slope_at(piece: Activation, at: Tensor) -> tuple[float, float]:
    """The slope at a point: to nearest where there is a formula, so that equal ones are seen to be equal."""
    if isinstance(piece, Smooth):
        value = piece.slope.at(at).item()
        return value, value
    low, high = piece.slopes(at, at)
    return low.item(), high.item()
