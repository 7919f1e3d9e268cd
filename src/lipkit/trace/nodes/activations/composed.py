"""Functions of one variable that are made of several steps, and their slopes by interval arithmetic."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.rounding.slacks import ROUNDINGS_16
from lipkit.trace.nodes._extended_products import times
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.activations.far_from_zero import FAR, tail_slopes, tail_values
from lipkit.trace.nodes.activations.formula_steps import Applied, Combined, Multiplied, Step
from lipkit.trace.nodes.pointwise import Activation

# How many pieces an interval is cut into: as many as this for all entries together, within these limits.
_PIECES, _FEWEST, _MOST = 2**16, 8, 2**14
# The power of ten at which cuts around 0 begin.
_NEAREST = -20


@final
@dataclass(frozen=True, eq=False)
class Composed(Activation):
    """f(x) = the last of `steps`, of which step 0 is x itself and each later one is made of earlier ones.

    An interval is cut into pieces. On each, value, slope and curvature follow from those of the steps by the rules for
    sums, products and chains, with intervals for numbers; a slope is also within half a width times the curvature of
    the one at the middle, so that the largest slope is nearly exact. Beyond |x| = 64 every step is bounded by a power
    of |x| (`tails`). All rounding is outward. Steps have no kinks. Our derivation.
    """

    label: str
    steps: tuple[Step, ...]

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        found = [z]
        for step in self.steps:
            match step:
                case Combined(terms, constant):
                    found.append(sum((rate * found[i] for i, rate in terms), torch.full_like(z, constant)))
                case Multiplied(first, second):
                    found.append(found[first] * found[second])
                case Applied(activation, inner):
                    found.append(activation(found[inner]))
        return found[-1]

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self._hull(low, high, 0)

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self._hull(low, high, 1)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return self._hull(low, high, 2)

    def _hull(self, low: Tensor, high: Tensor, order: int) -> Interval:
        """Bounds of the derivative of this order on every interval, tails included."""
        pieces = max(_FEWEST, min(_MOST, _PIECES // max(1, low.numel())))
        start, end = low.clamp(-FAR, FAR), high.clamp(-FAR, FAR)
        at = torch.linspace(0.0, 1.0, pieces + 1, dtype=torch.float64, device=low.device)
        at = at.reshape(-1, *(1,) * low.ndim)
        # Cuts are shared by the pieces on both sides, so their rounding leaves no gap.
        cuts = torch.minimum(torch.maximum(start + (end - start) * at, start), end)
        cuts = torch.cat([start[None], cuts[1:-1], end[None]])
        if pieces == _MOST:
            # Of few intervals also at every scale around 0, where a formula such as exp(-c x^2) may be steep.
            near = torch.logspace(_NEAREST, math.log10(FAR), pieces // 4, dtype=torch.float64, device=low.device)
            near = torch.cat([near, -near]).reshape(-1, *(1,) * low.ndim)
            cuts = torch.cat([cuts, torch.minimum(torch.maximum(near, start), end)]).sort(0).values
        found = self._enclose(cuts[:-1], cuts[1:])[order]
        if order < 2:
            found = self._by_middle(cuts[:-1], cuts[1:], found, order)
        under, over = found[0].amin(0), found[1].amax(0)
        for side, reaches in ((-1.0, low < -FAR), (1.0, high > FAR)):
            tail = (-torch.inf, torch.inf)
            if bool(reaches.any()) and order < 2:
                tail = (tail_values, tail_slopes)[order](self.steps, side)
            under = torch.where(reaches, under.clamp(max=tail[0]), under)
            over = torch.where(reaches, over.clamp(min=tail[1]), over)
        return under, over

    def _by_middle(self, low: Tensor, high: Tensor, plain: Interval, order: int) -> Interval:
        """The mean value form: the derivative at the middle, plus or minus half the width times the next one."""
        middle = low / 2 + high / 2
        half = torch.maximum(high - middle, middle - low) * (1 + ROUNDINGS_16)
        at, change = self._enclose(middle, middle)[order], self._enclose(low, high)[order + 1]
        most = times(torch.maximum(change[0].abs(), change[1].abs()), half) * (1 + ROUNDINGS_16)
        # A kink or a pole says nothing here, and infinite minus infinite neither.
        under = torch.where(torch.isfinite(most), at[0] - most, -torch.inf)
        over = torch.where(torch.isfinite(most), at[1] + most, torch.inf)
        slack = ROUNDINGS_16 * torch.where(torch.isfinite(most), at[0].abs() + at[1].abs() + most, 0.0)
        return torch.maximum(plain[0], under - slack), torch.minimum(plain[1], over + slack)

    def _enclose(self, low: Tensor, high: Tensor) -> tuple[Interval, Interval, Interval]:
        """Bounds of f, f' and f'' on each interval."""
        zero = torch.zeros_like(low)
        found = [((low, high), (zero + 1, zero + 1), (zero, zero))]
        for step in self.steps:
            match step:
                case Combined(terms, constant):
                    parts = [tuple(_multiply(part, _point(rate, zero)) for part in found[i]) for i, rate in terms]
                    start = (_point(constant, zero), (zero, zero), (zero, zero))
                    found.append(_sums([start, *parts]))
                case Multiplied(first, second):
                    (u, du, ddu), (v, dv, ddv) = found[first], found[second]
                    bend = [_multiply(ddu, v), _multiply(u, ddv), _multiply(_multiply(du, dv), _point(2.0, zero))]
                    found.append((_multiply(u, v), _add([_multiply(du, v), _multiply(u, dv)]), _add(bend)))
                case Applied(activation, inner):
                    u, du, ddu = found[inner]
                    slope, bend = activation.slopes(*u), activation.bends(*u)
                    curved = [_multiply(bend, _square(du)), _multiply(slope, ddu)]
                    found.append((activation.values(*u), _multiply(slope, du), _add(curved)))
        return found[-1]

    def __str__(self) -> str:
        return self.label


def _point(value: float, like: Tensor) -> Interval:
    return like + value, like + value


def _sums(parts: list[tuple[Interval, ...]]) -> tuple[Interval, Interval, Interval]:
    value, slope, bend = (_add([part[i] for part in parts]) for i in range(3))
    return value, slope, bend


def _add(parts: list[Interval]) -> Interval:
    """The sum of intervals, rounded outward; contradictory infinities say nothing."""
    lows, highs = (torch.stack([part[side] for part in parts]) for side in (0, 1))
    below, above = (ROUNDINGS_16 * ends.abs().sum(0) for ends in (lows, highs))
    return _outward(lows.sum(0), highs.sum(0), below, above)


def _multiply(first: Interval, second: Interval) -> Interval:
    corners = torch.stack([times(x, y) for x in first for y in second])
    low, high = corners.amin(0), corners.amax(0)
    return _outward(low, high, ROUNDINGS_16 * low.abs(), ROUNDINGS_16 * high.abs())


def _square(part: Interval) -> Interval:
    low, high = _multiply(part, part)
    return low.clamp(min=0.0), high


def _outward(low: Tensor, high: Tensor, below: Tensor, above: Tensor) -> Interval:
    # A value that overflowed lies beyond the largest number; nothing more is known of it.
    most = torch.finfo(torch.float64).max
    under = torch.where(torch.isfinite(low), low - below, low.clamp(max=most))
    over = torch.where(torch.isfinite(high), high + above, high.clamp(min=-most))
    return torch.where(torch.isnan(low), -torch.inf, under), torch.where(torch.isnan(high), torch.inf, over)
