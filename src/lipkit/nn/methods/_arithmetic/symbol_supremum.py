"""The supremum of a symbol over all frequencies, from boxes that are split where they have to be."""

import math
from typing import NamedTuple, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.linops import Shape, Symbol
from lipkit.nn.methods._arithmetic.symbol_norm import small_grid
from lipkit.norms import SVD, Cholesky
from lipkit.rounding.slacks import ROUNDINGS_128

# Up to this side a full decomposition is faster than a guess and its proof.
_SMALL = 64
# Entries of symbols held at once.
_CHUNK = 2**22
# The search stops this near to the supremum once it is known to be above the limit.
_NEAR = 1 + 1e-4
# For the rounding of a few operations in float64.
_MARGIN = 1 + ROUNDINGS_128


@final
class Supremum(NamedTuple):
    """Numbers that the supremum lies between; the upper one is proven, the lower one is up to rounding."""

    lower: float
    upper: float


def supremum(kernel: Float64[Tensor, "groups rows cols *taps"], limit: float, points: int) -> Supremum:
    """Bounds of S = sup_w ||E(w)|| for the symbol E of each kernel (stride 1), the largest of all groups.

    If S is attained at w*, then f(s) = Re u* E(w* + s t) v, with singular vectors u and v, is a sum of exponentials of
    frequencies up to r = sum over axes of d |t|, d = (taps - 1)/2 (about the centre of the kernel), at most S in size
    and S at 0. So f(1) >= S cos r for r < pi/2 (Duffin and Schaeffer 1938), and for the box with w* in it, of centre c
        S <= ||E(c)|| / cos r.
    Boxes for which this is at most `limit`, or near the largest value met if that is above, are settled; the others
    are halved on every axis: most points are where the symbol is large. Whichever box has w* in it, S is at most the
    largest of these bounds.

    Guarantee: `upper` holds with all rounding counted, whenever the search stops: if no box is left, or before it would
    take more than `points` frequencies (but for those of the first grid).
    """
    taps = tuple(kernel.shape[3:])
    symbol = Symbol(kernel, (1,) * len(taps), 1.0, exact=False, section=None)
    error = float(symbol.error())
    curved = [axis for axis, t in enumerate(taps) if t > 1]
    # The first boxes reach r = pi/4. An even number of them on each axis: of a real kernel half of one axis is enough.
    grid = tuple(1 if t == 1 else 4 * len(curved) * (t // 2) for t in taps)
    boxes = torch.cartesian_prod(
        *[torch.arange(n // 2 if curved and axis == curved[0] else n) for axis, n in enumerate(grid)]
    ).reshape(-1, len(taps))
    lower, settled, spent = 0.0, 0.0, 0
    while True:
        values = _norms(symbol, 2 * boxes + 1, tuple(2 * n for n in grid)) + error
        reach = math.pi * sum((taps[axis] - 1) / 2 / grid[axis] for axis in curved)
        upper = values * (_MARGIN / math.cos(reach))
        lower, spent = max(lower, float(values.max())), spent + len(boxes)
        open_ = upper > (limit if lower <= limit else lower * _NEAR)
        settled = max([settled, *upper[~open_].tolist()])
        boxes = boxes[open_]
        if spent + len(boxes) * 2 ** len(curved) > points or not len(boxes) or not curved:
            return Supremum(lower, max([settled, *upper[open_].tolist()]))
        boxes, grid = _halve(boxes, curved), tuple(n if t == 1 else 2 * n for n, t in zip(grid, taps, strict=True))


def _halve(boxes: Int64[Tensor, "count axes"], curved: list[int]) -> Int64[Tensor, "more axes"]:
    """The places of the halves of boxes on a grid twice as fine, on the curved axes."""
    for axis in curved:
        step = torch.zeros_like(boxes)
        step[:, axis] = boxes[:, axis]
        boxes = boxes + step
        step = torch.zeros_like(boxes)
        step[:, axis] = 1
        boxes = torch.cat([boxes, boxes + step])
    return boxes


def on_grid(kernel: Float64[Tensor, "groups rows cols *taps"], slack: float, points: int) -> float:
    """S from a whole grid as in `norms.SmallGrid`, too large by `slack` at most; infinity if that needs more `points`.

    For a symbol as large almost everywhere: with several axes a whole grid may be coarser than small boxes.
    """
    grid, factor = small_grid(tuple(kernel.shape[3:]), slack)
    if math.prod(grid) > 2 * points:
        return math.inf
    symbol = Symbol(kernel, (1,) * len(grid), 1.0, exact=False, section=None)
    found = float(_norms(symbol, symbol.frequencies(grid), grid).max())
    return (found + float(symbol.error())) * (factor * _MARGIN)


def _norms(symbol: Symbol, points: Int64[Tensor, "count axes"], grid: Shape) -> Float64[Tensor, " count"]:
    """||E|| at points of a grid, of the largest group, rounded up."""
    rows, cols = symbol.kernel.shape[1:3]
    inner = SVD() if min(rows, cols) <= _SMALL else Cholesky(rtol=1e-7, steps=60)
    width = max(1, _CHUNK // symbol.kernel.flatten(3)[..., 0].numel())
    found: list[Tensor] = []
    for some in points.split(width):
        blocks = symbol.at(some, grid)
        logs = inner.enclose(blocks.flatten(0, 1).unsqueeze(1)).log_upper
        found.append(logs.unflatten(0, blocks.shape[:2]).amax(1).exp().cpu())
    return torch.cat(found) * _MARGIN
