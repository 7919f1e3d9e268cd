"""A scalar function between whose stations one can only go up or down, and its exact range on every interval."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import NotProvenError
from lipkit.rounding.slacks import ROUNDINGS_16, ROUNDINGS_64

Interval = tuple[Float64[Tensor, "..."], Float64[Tensor, "..."]]

# An elementary function of float64 is within two units in the last place on every device (2^-51); the formulas here
# take at most 16 of them and of sums and products, on intermediate values of the size of the result or of 1.
SLACK = ROUNDINGS_64
# Formulas on Python floats: at most 8 operations of one unit in the last place (2^-52), on numbers below 2.
_CLOSE = ROUNDINGS_16

# How far a station may lie from the true turning point: half of the digits of float64, for a curve is flat there.
BLUR = 2.0**-26
# Slopes beside a turning point that are larger than this have a sure sign.
_STEEP = 2.0**-40


class Station(NamedTuple):
    """A place where a curve turns, known to within `blur`, and its value there, known to within `error`."""

    place: float
    value: float
    error: float = 0.0
    blur: float = BLUR


@final
@dataclass(frozen=True)
class Curve:
    """A function g that is monotone between its stations, with its limits at -inf and +inf.

    `at` evaluates it in the dtype of its argument, within absolute + relative |g| of the truth in float64. Its domain
    is [start, inf) without `pole`: of an interval that leaves it, nothing is known. The range of g on [low, high] is
    the hull of the end values and of the stations inside; rounded outward, and cut to the range on the whole domain,
    or to `bounds` where the curve is only asked on a part of it.
    """

    at: Callable[[Tensor], Tensor]
    limits: tuple[float, float]
    stations: tuple[Station, ...] = ()
    start: float = -math.inf
    pole: float | None = None
    absolute: float = SLACK
    relative: float = SLACK
    bounds: tuple[float, float] | None = None

    def range(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        """An interval that contains g([low, high]); ends may be infinite."""
        outside = low < self.start
        if self.pole is not None:
            outside = outside | ((low <= self.pole) & (high >= self.pole))
        left, right = self._end(low, outside, self.limits[0]), self._end(high, outside, self.limits[1])
        smallest, largest = torch.minimum(left[0], right[0]), torch.maximum(left[1], right[1])
        for place, value, error, blur in self.stations:
            # An interval that ends nearby is treated as if it held the station.
            inside = (low < place + blur) & (high > place - blur)
            smallest = torch.where(inside, smallest.clamp(max=value - error), smallest)
            largest = torch.where(inside, largest.clamp(min=value + error), largest)
        floor, ceiling = self._whole()
        smallest, largest = smallest.clamp(min=floor), largest.clamp(max=ceiling)
        return torch.where(outside, -math.inf, smallest), torch.where(outside, math.inf, largest)

    def _end(self, x: Tensor, outside: Tensor, limit: float) -> Interval:
        """Bounds of g at one end; away from the domain the argument is replaced, so that no NaN arises."""
        infinite = torch.isinf(x)
        value = self.at(torch.where(infinite | outside, self._somewhere(), x))
        # An overflow lies beyond the largest number, and no farther is known; a slack would make it NaN.
        most = torch.finfo(torch.float64).max
        slack = torch.where(torch.isinf(value), 0.0, self.absolute + self.relative * value.detach().abs())
        under, over = (value - slack).clamp(max=most), (value + slack).clamp(min=-most)
        return torch.where(infinite, limit, under), torch.where(infinite, limit, over)

    def _somewhere(self) -> float:
        base = 0.0 if math.isinf(self.start) else self.start
        return base + 1.0 if self.pole in (base, None) else base

    def _whole(self) -> tuple[float, float]:
        """The range on the whole domain, where it is known: not across a pole, nor where the domain begins."""
        if self.bounds is not None:
            return self.bounds
        if self.pole is not None or self.start > -math.inf:
            return -math.inf, math.inf
        lows = [*self.limits, *(s.value - s.error for s in self.stations)]
        highs = [*self.limits, *(s.value + s.error for s in self.stations)]
        return min(lows), max(highs)


def level(value: float, error: float = 0.0) -> Curve:
    """The constant curve; `error` is what its value may be off by."""
    stations = (Station(0.0, value, error),) if error else ()
    return Curve(lambda x: torch.full_like(x, value), (value, value), stations, absolute=error, relative=0.0)


def station(curve: Callable[[float], float], slope: Callable[[float], float], low: float, high: float) -> Station:
    """The station of `curve` at the only root of its derivative `slope` in (low, high).

    Bisection in float64, then a proof: at 2^-26 to either side the slope has opposite signs and is larger than its own
    rounding error, so the root lies between. There the curve differs from the value by at most
    max|second derivative| 2^-53, below its rounding error.
    """
    place = bisect(slope, low, high)
    before, after = slope(place - BLUR), slope(place + BLUR)
    if not (before * after < 0 and min(abs(before), abs(after)) > _STEEP):
        raise NotProvenError(f"No turning point was proven near {place}; the slopes beside it are {before}, {after}.")
    return Station(place, curve(place), _CLOSE)


def bisect(fn: Callable[[float], float], low: float, high: float) -> float:
    """A sign change of `fn` in [low, high], to the last bit that float64 can see."""
    rising = fn(low) < fn(high)
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (middle, high) if (fn(middle) < 0) == rising else (low, middle)
    return low
