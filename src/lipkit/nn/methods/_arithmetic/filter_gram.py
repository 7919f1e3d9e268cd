"""W'W of kernels and matrices, at all shifts of their taps, with bounds of its rounding errors."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import exact_products
from lipkit.rounding.slacks import UNIT_OF

# More than all products of a sum can lose to underflow, for entries of at most one.
TINY = {torch.float32: 2.0**-100, torch.float64: 2.0**-960}
# float32 sums of this many entries make the bound looser by 0.5 % for orthogonal matrices; larger ones use float64.
_WIDE = 2**18
# Up to so many taps, or so many entries of the products of all pairs of them, an accelerator is faster with all pairs
# at once: 81 products for 3 x 3 instead of 54, in one launch.
_FEW = 9
_ALL_PAIRS = 2**26


def periods(geometry: Geometry) -> tuple[Shape, Shape]:
    """On each axis, how many phases the taps fall into, and how many taps the fullest phase has.

    Tap a meets positions congruent to a d modulo the stride s, so taps a and a + s/gcd(s, d) share a phase; taps of
    different phases never meet the same entry of the input.
    """
    apart = tuple(
        min(s // math.gcd(s, d), k) for s, d, k in zip(geometry.stride, geometry.dilation, geometry.taps, strict=True)
    )
    return apart, tuple(-(-k // p) for k, p in zip(geometry.taps, apart, strict=True))


def _one_phase(geometry: Geometry) -> bool:
    """Whether `periods` are all one: asked at every use of a weight."""
    return all(d % s == 0 or k == 1 for s, d, k in zip(geometry.stride, geometry.dilation, geometry.taps, strict=True))


def split_phases(
    blocks: Float[Tensor, "groups rows cols *taps"], geometry: Geometry
) -> Float[Tensor, "groups rows phased *lengths"]:
    """The kernel of the same operator with stride 1: every phase of the input is a channel of its own.

    Its symbol is that of the strided convolution, up to unit factors on columns. The last axis of a matrix is one tap.
    """
    if not geometry.taps:
        return blocks.unsqueeze(-1)
    if _one_phase(geometry):
        return blocks
    apart, lengths = periods(geometry)
    axes = range(len(apart))
    spare = [n for i in reversed(axes) for n in (0, apart[i] * lengths[i] - geometry.taps[i])]
    split = functional.pad(blocks, spare)
    for i in reversed(axes):
        split = split.unflatten(3 + i, (lengths[i], apart[i]))
    order = (0, 1, 2, *(4 + 2 * i for i in axes), *(3 + 2 * i for i in axes))
    return split.permute(order).flatten(2, 2 + len(apart))


def merge_phases(
    kernel: Float[Tensor, "groups rows phased *lengths"], geometry: Geometry
) -> Float[Tensor, "groups rows cols *taps"]:
    """The inverse of `split_phases`."""
    if not geometry.taps:
        return kernel.squeeze(-1)
    if _one_phase(geometry):
        return kernel
    apart, _ = periods(geometry)
    rank = len(apart)
    split = kernel.unflatten(2, (geometry.cols, *apart))
    order = [0, 1, 2]
    for i in range(rank):
        order += [3 + rank + i, 3 + i]
    split = split.permute(order)
    for i in range(rank):
        split = split.flatten(3 + i, 4 + i)
        split = split.narrow(3 + i, 0, geometry.taps[i])
    return split


def in_enough_digits(kernel: Float[Tensor, "groups rows cols *taps"]) -> torch.dtype:
    """The type to multiply in: that of the kernel, or float64 for wide ones and where float32 would lose digits."""
    rows, cols = kernel.shape[1:3]
    return torch.float64 if rows * cols > _WIDE or not exact_products(kernel) else kernel.dtype


def with_rounding(
    sums: Float64[Tensor, "#groups #cols 1"],
    kernel: Float[Tensor, "groups rows cols *taps"],
    q: Float64[Tensor, "groups cols"] | None = None,
    scale: float = 1.0,
) -> Float64[Tensor, "groups cols 1"]:
    """Sums of |M_ij| q_j as computed, enlarged by what rounding may have taken from them, times `scale`.

    The kernel and q are taken as numbers without gradient. What underflow may have taken, at most `TINY` of the dtype,
    is left to the caller.
    """
    # A list, because compilers cannot read generators.
    shifts = math.prod([2 * t - 1 for t in kernel.shape[3:]])
    # The sum over shifts may be in the dtype of the kernel; all terms of a row are added up in float64.
    found = 1 + 2 * (shifts + 4) * UNIT_OF[kernel.dtype] + 2 * shifts * kernel.shape[2] * UNIT_OF[torch.float64]
    return with_lost(sums, kernel, q, scale * found, scale)


def with_lost(
    sums: Float64[Tensor, "#groups #cols 1"],
    kernel: Float[Tensor, "groups rows cols *taps"],
    q: Float64[Tensor, "groups cols"] | None,
    kept: float,
    scale: float,
) -> Float64[Tensor, "groups cols 1"]:
    """`kept` times the sums, and `scale` times the sums over j of |M - fl M|_ij q_j, at most.

    Every entry of |K| * |K| is counted once for each rounding on the way to that of M: at most `rows` in the inner
    products, `count` in the sums over pairs of taps, and of the eight more two for a kernel that was scaled, one for
    the sum of M and its transpose, one for the divisor of its entries.
    """
    rows, _, *taps = kernel.shape[1:]
    unit, count = UNIT_OF[kernel.dtype], math.prod(taps)
    depth = (rows + count + 8) * unit
    # Twice the taps and a little for the rounding of this formula itself.
    lost = depth / (1 - 2 * depth) * (1 + 4 * count * unit)
    size = torch.linalg.vector_norm(kernel, 1, dim=tuple(range(3, kernel.ndim)), dtype=torch.float64)
    whole = size.sum(2, keepdim=True) if q is None else size @ q.detach()[..., None]
    return torch.baddbmm(sums, size.mT, whole, beta=kept, alpha=scale * lost)


def half_gram(kernel: Float[Tensor, "groups rows cols *taps"]) -> Float[Tensor, "groups first rest cols cols"]:
    """The filter Gram at the shifts whose first component is not negative; the others are its transposes.

        M[shift, i, i'] = sum_{j, a} K[j, i, a] K[j, i', a + shift]

    Cost: products of all pairs of taps whose first components are in order, about half of all pairs.
    """
    groups, rows, cols, first, *taps = kernel.shape
    flat = kernel.permute(0, *range(3, kernel.ndim), 2, 1).reshape(groups, first, -1, rows)
    rank = len(taps)
    order = [0, 2 + rank, *_alternating(1, 3 + rank, rank), 1 + rank, 3 + 2 * rank]
    total: Tensor | None = None
    for a in range(first):
        pairs = flat[:, a] @ flat[:, a:].flatten(1, 2).mT
        apart = pairs.view(groups, *taps, cols, first - a, *taps, cols).permute(order)
        found = _by_shift(apart, taps, 2).reshape(groups, first - a, -1, cols, cols)
        total = found if total is None else total + functional.pad(found, (0, 0) * 3 + (0, a))
    assert total is not None
    return total


def _alternating(first: int, second: int, rank: int) -> list[int]:
    """The axes first, second, first + 1, second + 1, ...: the two taps of a pair side by side."""
    return [place + i for i in range(rank) for place in (first, second)]


def _by_shift(pairs: Float[Tensor, "*before_taps_after"], taps: Sequence[int], start: int) -> Tensor:
    """The sums of all pairs of taps (a, b) with the same shift b - a, on every axis; in order of the shifts.

    The axes of a and b stand side by side, from the axis `start` on; the axis of shifts takes their place.
    """
    found = pairs
    for i, t in enumerate(taps, start):
        if t == 1:
            found = found.squeeze(i)
            continue
        # Rows of 2 t - 2 entries, read as rows of 2 t - 1, move by one place each: equal shifts stand in one column.
        wide = functional.pad(found, (0, 0) * (found.ndim - 2 - i) + (0, t - 2, 1, 1)).flatten(i, i + 1)
        moved = wide.narrow(i, t - 1, t * (2 * t - 1))
        found = moved.view(*moved.shape[:i], t, 2 * t - 1, *moved.shape[i + 1 :]).sum(i)
    return found


def absolute_gram(kernel: Float[Tensor, "groups rows cols *taps"]) -> Float64[Tensor, "groups cols cols"]:
    """sum over all shifts of |M_ij|: half of the filter Gram counted twice or, if launches count, all of it."""
    if launches_count(kernel):
        shifts = all_shifts(every_tap(kernel), kernel.shape)
        return torch.linalg.vector_norm(shifts.flatten(3), 1, dim=3, dtype=torch.float64)
    return absolute_sums(half_gram(kernel))


def launches_count(kernel: Float[Tensor, "groups rows cols *taps"]) -> bool:
    """Whether one product of all pairs of taps is faster than several with half of the work."""
    groups, _, cols, *axes = kernel.shape
    taps = math.prod(axes)
    return kernel.device.type != "cpu" and (taps <= _FEW or groups * (cols * taps) ** 2 <= _ALL_PAIRS)


def every_tap(kernel: Float[Tensor, "groups rows cols *taps"]) -> Float[Tensor, "groups rows channels"]:
    """The channels at all taps as columns, as they stand in memory: nothing is copied."""
    return kernel.reshape(*kernel.shape[:2], -1)


def all_shifts(
    every: Float[Tensor, "groups rows channels"], shape: torch.Size, change: Tensor | None = None
) -> Float[Tensor, "groups cols cols *shifts"]:
    """The filter Gram at all shifts by one product of all pairs of taps; or how it moves with `change`."""
    groups, _, cols, *taps = shape
    rank = len(taps)
    pairs = torch.bmm(every.mT, every if change is None else change)
    pairs = pairs if change is None else pairs + pairs.mT
    apart = pairs.view(groups, cols, *taps, cols, *taps).permute(0, 1, 2 + rank, *_alternating(2, 3 + rank, rank))
    return _by_shift(apart, taps, 3)


def _opposite(shifts: Float[Tensor, "groups n n *shifts"]) -> Float[Tensor, "groups n n *shifts"]:
    """M_ji at the opposite shifts, which is M_ij but for rounding."""
    axes = [i for i in range(3, shifts.ndim) if shifts.shape[i] > 1]
    return (shifts.flip(axes) if axes else shifts).transpose(1, 2)


def absolute_sums(half: Float[Tensor, "groups first rest n n"]) -> Float64[Tensor, "groups n n"]:
    """sum over all shifts of |M_ij| from the half of them, a symmetric matrix up to rounding."""
    size = half.abs().sum(2)
    centre = size[:, 0].to(torch.float64)
    if half.shape[1] == 1:
        return centre
    beside = size[:, 1:].sum(1).to(torch.float64)
    return centre + beside + beside.mT


def twice_gram(kernel: Float[Tensor, "groups rows cols *taps"]) -> Float[Tensor, "groups cols cols *shifts"]:
    """2 M at all shifts, a kernel that is its own adjoint to the last digit: sums do not depend on their order."""
    if launches_count(kernel):
        shifts = all_shifts(every_tap(kernel), kernel.shape)
        return shifts + _opposite(shifts)
    half = half_gram(kernel)
    centre, after = half[:, :1], 2 * half[:, 1:]
    full = torch.cat([after.flip(1, 2).mT, centre + centre.flip(2).mT, after], 1)
    n = half.shape[-1]
    return full.permute(0, 3, 4, 1, 2).reshape(-1, n, n, *(2 * t - 1 for t in kernel.shape[3:]))
