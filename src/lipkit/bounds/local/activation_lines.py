"""Straight lines above and below an activation on an interval."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.slacks import ROUNDINGS_128
from lipkit.trace.nodes import Activation, PiecewiseLinear

# Pieces an interval is cut into where the activation has no straight ones.
_PIECES = 12
_ULPS = ROUNDINGS_128


@final
@dataclass(frozen=True, eq=False)
class Lines:
    """lower_slope z + lower_shift <= f(z) <= upper_slope z + upper_shift on an interval, entry by entry."""

    lower_slope: Float64[Tensor, "..."]
    lower_shift: Float64[Tensor, "..."]
    upper_slope: Float64[Tensor, "..."]
    upper_shift: Float64[Tensor, "..."]


def lines(activation: Activation, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Lines:
    """The pair of lines with the least area between, of those parallel to a chord of the graph.

    The interval is cut at the knots, or into equal pieces; on a piece [a, b] where the slopes of f lie in [p, q],
    g(z) = f(z) - s z is at most the meeting point of the lines g(a) + (q - s)(z - a) and g(b) - (p - s)(b - z), and at
    least the opposite one. Straight pieces make both exact: for ReLU this is the triangle, with the lower line 0 or z
    by which half of the interval is longer. Rounded outward. Where an end or a slope is infinite: constants.
    """
    alpha, beta = (slope.expand(low.shape) for slope in activation.slopes(low, high))
    sure = (alpha == beta) & torch.isfinite(low) & torch.isfinite(high)
    below, above = activation.values(low, low)
    size = _ULPS * (torch.maximum(below.abs(), above.abs()) + alpha.abs() * torch.maximum(low.abs(), high.abs()))
    straight = (alpha, below - alpha * low - size, alpha, above - alpha * low + size)
    found = [torch.where(sure, part, 0.0) for part in straight]
    open_ = ~sure
    if bool(open_.any()):
        for part, value in zip(found, _bent(_select(activation, open_), low[open_], high[open_]), strict=True):
            part[open_] = value
    return Lines(*found)


def _select(activation: Activation, where: Tensor) -> Activation:
    """The activation of the selected entries: tensors that have one parameter for each entry are selected as well."""
    return activation.map(lambda t: t.expand(where.shape)[where] if t.ndim else t)


def _bent(activation: Activation, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    finite = torch.isfinite(low) & torch.isfinite(high)
    least, largest = activation.values(low, high)
    low, high = torch.where(finite, low, 0.0), torch.where(finite, high, 0.0)
    grid = _grid(activation, low, high)
    below, above = activation.values(grid, grid)
    alpha, beta = activation.slopes(grid[:-1], grid[1:])
    finite = finite & torch.isfinite(alpha).all(0) & torch.isfinite(beta).all(0)
    alpha, beta = torch.where(finite, alpha, 0.0), torch.where(finite, beta, 0.0)
    steepest = torch.maximum(alpha.abs(), beta.abs()).amax(0)
    rise = (below[1:] + above[1:] - below[:-1] - above[:-1]) / 2
    step = grid[1:] - grid[:-1]
    mid = low / 2 + high / 2
    best: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    for slope in (_slope(rise.sum(0), high - low), *_slope(rise, step)):
        size = above.abs().maximum(below.abs()).amax(0) + (slope.abs() + steepest) * low.abs().maximum(high.abs())
        top = _highest(above - slope * grid, alpha - slope, beta - slope, step).amax(0) + _ULPS * size
        bottom = -_highest(slope * grid - below, slope - beta, slope - alpha, step).amax(0) - _ULPS * size
        if best is None:
            best = (slope, bottom, slope, top)
            continue
        lifts = bottom + slope * mid > best[1] + best[0] * mid
        sinks = top + slope * mid < best[3] + best[2] * mid
        best = (
            torch.where(lifts, slope, best[0]), torch.where(lifts, bottom, best[1]),
            torch.where(sinks, slope, best[2]), torch.where(sinks, top, best[3]),
        )  # fmt: skip
    assert best is not None
    return (
        torch.where(finite, best[0], 0.0), torch.where(finite, best[1], least),
        torch.where(finite, best[2], 0.0), torch.where(finite, best[3], largest),
    )  # fmt: skip


def _grid(activation: Activation, low: Tensor, high: Tensor) -> Tensor:
    if isinstance(activation, PiecewiseLinear):
        inside = [torch.full_like(low, knot).clamp(low, high) for knot in activation.knots]
    else:
        inside = [low + (high - low) * (i / _PIECES) for i in range(1, _PIECES)]
        inside = [point.clamp(low, high) for point in inside]
    return torch.stack([low, *inside, high])


def _slope(rise: Tensor, run: Tensor) -> Tensor:
    return torch.where(run > 0, rise / torch.where(run > 0, run, 1.0), 0.0)


def _highest(values: Tensor, least: Tensor, steepest: Tensor, step: Tensor) -> Tensor:
    """The most g can be on each piece, from its values at the ends and its slopes in [least, steepest]."""
    first, last = values[:-1], values[1:]
    up, down = steepest.clamp(min=0), (-least).clamp(min=0)
    turns = (up > 0) & (down > 0)
    total = torch.where(turns, up + down, 1.0)
    meeting = (up * last + down * first + up * down * step) / total
    # The step itself carries a rounding of the grid points.
    meeting = meeting + _ULPS * (first.abs() + last.abs() + up * down / total * step)
    return torch.where(turns, torch.maximum(meeting, torch.maximum(first, last)), torch.maximum(first, last))
