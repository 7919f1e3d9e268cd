"""A proven enclosure of the normalising constant of an energy, in few dimensions."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.rounding.float64 import gamma, vector_norms
from lipkit.rounding.slacks import ROUNDINGS_32, ROUNDINGS_64
from lipkit.sdf._base import constant_of
from lipkit.sdf.energies.energy import Energy
from lipkit.sdf.given_numbers import as_whole

# Sides of boxes from here on have cells above 2^-1000, in as many as memory holds: their numbers have all digits.
_SHORTEST = 2.0**-940
# Points measured at once.
_AT_ONCE = 2**14
# exp of a difference down to -745, each rounded by half a unit in the last place, and the elementary function itself.
_ROUNDINGS_OF_A_TERM = 1024


@final
@dataclass(frozen=True)
class LogPartition:
    """lower <= log Z <= upper in real arithmetic, from so many cells of a grid."""

    lower: float
    upper: float
    cells: int


def log_partition(energy: Energy, cells: int = 2**18) -> LogPartition:
    """Enclose log Z, Z the integral of exp(-E) over the box, by a grid of cells.

    Let c be E at the center of a cell of half diagonal r. The mean distance of its points to the center is at most
    r / sqrt 3 (its mean square is r^2 / 3), so by Jensen's inequality, and because exp lies below its chord,

        exp(-c - K r / sqrt 3)  <=  mean of exp(-E) over the cell  <=  exp(-c) (1 + (exp(K r) - 1) / sqrt 3).

    Guarantee: log Z lies between, rounding counted; cells with a side below 2^-1000, whose numbers lose digits, are
    refused. The width is at most 1.16 K r for small K r, plus rounding. So
    -E(x) - upper <= log p(x) <= -E(x) - lower, up to the rounding of E.
    Cost: `cells` evaluations with a bound of their rounding; r shrinks with cells^(-1/d), so this is for few
    dimensions: the enclosure is true in any, and wide in many. Reference: ours.

    Args:
        energy: The density.
        cells: At most so many cells, shared among the axes so that they are nearly cubes.
    """
    if not isinstance(energy, Energy):
        raise ArgumentError(f"log Z is of an sdf.Energy, got {type(energy).__name__}; put a field on a box first.")
    if as_whole(cells, "cells") < 1:
        raise ArgumentError(f"A grid has at least 1 cell, got cells={cells}.")
    shortest = float((energy.high - energy.low).min())
    if not shortest >= _SHORTEST:
        raise ArgumentError(
            f"The box of the energy has a side of length {shortest:.3g}, which float64 does not divide to full "
            "precision; give its coordinates in another unit."
        )
    counts = _share(energy, cells)
    total = math.prod(counts)
    sides = (energy.high - energy.low) / torch.tensor(counts, dtype=torch.float64, device=energy.low.device)
    radius = (1 + gamma(energy.dim + 16)) * float(vector_norms(sides[None], 2.0)) / 2
    # A computed center is off by the rounding of a product, a quotient and a sum in each coordinate.
    size = float(torch.maximum(energy.low.abs(), energy.high.abs()).max())
    off = gamma(16) * 4 * size * math.sqrt(energy.dim)
    constant = constant_of(energy.field)
    low, high = [], []
    for start in range(0, total, _AT_ONCE):
        numbers = torch.arange(start, min(start + _AT_ONCE, total), device=energy.low.device)
        found = energy.field.measure(_centers(energy, numbers, counts, sides))
        slack = found.error + (constant * off + ROUNDINGS_64 * found.value.abs())
        low.append(-found.value - slack)
        high.append(-found.value + slack)
    reach = constant * radius
    chord = reach + math.log((1 - 1 / math.sqrt(3)) * math.exp(-reach) + 1 / math.sqrt(3))
    volume = float(sides.log().sum())
    rounding = ROUNDINGS_64 * (abs(volume) + float(sides.log().abs().sum()) + reach + 1)
    below, above = _log_sum(torch.cat(low), -1.0), _log_sum(torch.cat(high), 1.0)
    lower = _outward(below + volume - reach / math.sqrt(3), rounding, below, -1.0)
    upper = _outward(above + volume + chord, rounding, above, 1.0)
    if not (math.isfinite(lower) and math.isfinite(upper)):
        raise NonFiniteError(
            f"log Z has no finite enclosure, got {lower} to {upper}, for the constant {constant}; is it too large?"
        )
    return LogPartition(lower, upper, total)


def _share(energy: Energy, cells: int) -> list[int]:
    """How many cells each axis gets: nearly cubes, and the product is at most `cells`."""
    sides = (energy.high - energy.low).tolist()
    counts = [1] * len(sides)
    # From the shortest side on, so that what a side shorter than a cell leaves goes to the longer ones.
    order = sorted(range(len(sides)), key=sides.__getitem__)
    for place, axis in enumerate(order):
        rest = order[place:]
        edge = math.exp((sum(math.log(sides[i]) for i in rest) - math.log(cells)) / len(rest))
        counts[axis] = min(cells, max(1, math.floor(sides[axis] / edge * (1 + 1e-9))))
        cells //= counts[axis]
    return counts


def _centers(energy: Energy, numbers: Tensor, counts: list[int], sides: Tensor) -> Float64[Tensor, "n d"]:
    axes: list[Tensor] = []
    for axis, count in enumerate(counts):
        axes.append(energy.low[axis] + ((numbers % count).double() + 0.5) * sides[axis])
        numbers = numbers // count
    return torch.stack(axes, 1)


def _log_sum(logs: Float64[Tensor, " n"], side: float) -> float:
    """log of the sum of exp, moved past its rounding error to a side; terms that underflow are below it, too."""
    top = float(logs.max())
    total = float((logs - top).exp().sum())
    found = top + math.log(total)
    error = gamma(len(logs) + _ROUNDINGS_OF_A_TERM) + ROUNDINGS_32 * (abs(top) + abs(found) + 1)
    return found + side * error


def _outward(value: float, rounding: float, part: float, side: float) -> float:
    return value + side * (rounding + ROUNDINGS_32 * (abs(value) + abs(part)))
