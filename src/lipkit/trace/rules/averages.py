"""Averages and sums: pooling windows, and whole axes."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lipkit.linops import AvgPool, LinearOperator, Permute, Reshape, Shape
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.linear_operations import by_autograd

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _axes(value: int | Sequence[int], rank: int) -> Shape:
    many = (value,) if isinstance(value, int) else tuple(value)
    return many * rank if len(many) == 1 else many


def _pool(b: Builder, x: Ref, rank: int, pool: AvgPool) -> Ref:
    """A pool over all axes before the spatial ones as channels."""
    target = (*x.shape[:-rank], *pool.out_shape[1:])
    return b.linear(Reshape(pool.out_shape, target) @ pool @ Reshape(x.shape, pool.in_shape), x)


@lowers(aten.avg_pool1d.default, samples=lambda: [Sample((_x(1, 2, 7), [3], [2], [1])), Sample((_x(1, 2, 7), [2]))])
@lowers(
    aten.avg_pool2d.default,
    samples=lambda: [
        Sample((_x(1, 2, 6, 5), [2, 3])),
        Sample((_x(1, 2, 6, 5), [3, 3], [2, 1], [1, 1])),
        Sample((_x(1, 2, 6, 5), [3, 3], [2, 2], [1, 1], True, False)),
        Sample((_x(1, 2, 6, 5), [3, 3], [2, 2], [1, 1], False, True, 7)),
        Sample((_x(2, 6, 6), [2, 2])),
    ],
)
@lowers(aten.avg_pool3d.default, samples=lambda: [Sample((_x(1, 2, 4, 3, 4), [2, 2, 2], [1, 1, 2]))])
def avg_pool(
    b: Builder,
    x: Ref,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Ref:
    """The mean over windows. Windows that divide by different numbers (at a border) have no structure of their own."""
    # A pool of rank r is called with r numbers, or with one for all axes: the rank is that of the batched input.
    rank = max(len(kernel), len(x.shape) - 2 if len(kernel) == 1 else 0) or 1
    size, step, edge = _axes(kernel, rank), _axes(stride or kernel, rank), _axes(padding, rank)
    spatial = x.shape[-rank:]
    padded = [n + 2 * p for n, p in zip(spatial, edge, strict=True)]
    even = divisor_override is not None or count_include_pad or not any(edge)
    overhang = ceil_mode and any((n - k) % s for n, k, s in zip(padded, size, step, strict=True))
    if even and not overhang:
        divisor = divisor_override or math.prod(size)
        return _pool(b, x, rank, AvgPool(math.prod(x.shape[:-rank]), spatial, size, step, edge, divisor))
    op = {1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default}[rank]
    rest = (divisor_override,) if rank > 1 else ()
    return by_autograd(b, op, (x, size, step, edge, ceil_mode, count_include_pad, *rest), {}, {0})


@lowers(aten.adaptive_avg_pool1d.default, samples=lambda: [Sample((_x(1, 2, 6), [3])), Sample((_x(1, 2, 7), [3]))])
@lowers(
    aten.adaptive_avg_pool2d.default,
    samples=lambda: [Sample((_x(1, 2, 6, 4), [1, 1])), Sample((_x(1, 2, 5, 4), [3, 2])), Sample((_x(2, 4, 4), [2, 2]))],
)
@lowers(aten.adaptive_avg_pool3d.default, samples=lambda: [Sample((_x(1, 2, 2, 4, 4), [1, 2, 2]))])
def adaptive_avg_pool(b: Builder, x: Ref, output_size: Sequence[int]) -> Ref:
    """The mean over as many windows as asked for; windows of one size if the output divides the input."""
    rank = len(output_size)
    spatial = x.shape[-rank:]
    if 0 in output_size:
        raise Refusal("has a result without entries", "ask for at least one window")
    if all(n % m == 0 for n, m in zip(spatial, output_size, strict=True)):
        size = tuple(n // m for n, m in zip(spatial, output_size, strict=True))
        pool = AvgPool(math.prod(x.shape[:-rank]), spatial, size, size, (0,) * rank, math.prod(size))
        return _pool(b, x, rank, pool)
    ops = {1: aten.adaptive_avg_pool1d, 2: aten.adaptive_avg_pool2d, 3: aten.adaptive_avg_pool3d}
    return by_autograd(b, ops[rank].default, (x, list(output_size)), {}, {0})


def totals(shape: Shape, axes: Sequence[int], divisor: int, keepdim: bool) -> LinearOperator:
    """x -> sum over the axes / divisor: one window over all of them."""
    reduced = [axis % len(shape) for axis in axes]
    kept = [axis for axis in range(len(shape)) if axis not in reduced]
    channels, length = (math.prod(shape[axis] for axis in group) for group in (kept, reduced))
    pool = AvgPool(channels, (length,), (length,), (length,), (0,), divisor)
    order = (*kept, *reduced)
    before: LinearOperator = Reshape(tuple(shape[axis] for axis in order), (channels, length))
    if order != tuple(range(len(shape))):
        before = before @ Permute(shape, order)
    target = tuple(1 if axis in reduced else n for axis, n in enumerate(shape) if keepdim or axis not in reduced)
    return Reshape(pool.out_shape, target) @ pool @ before


def _reduce(
    b: Builder, x: Ref, axes: int | Sequence[int] | None, keepdim: bool, dtype: torch.dtype | None, mean: bool
) -> Ref:
    if dtype is not None and not dtype.is_floating_point:
        raise Refusal(f"rounds to {dtype}, which jumps", "leave out the dtype")
    some = [axes] if isinstance(axes, int) else list(axes or range(len(x.shape)))
    count = math.prod(x.shape[axis] for axis in some)
    return b.linear(totals(x.shape, some, count if mean else 1, keepdim), x)


@lowers(
    aten.mean.dim,
    samples=lambda: [
        Sample((_x(1, 2, 3, 4), [2, 3])),
        Sample((_x(1, 2, 3, 4), [1, -1], True)),
        Sample((_x(1, 2, 3), [0])),
        Sample((_x(1, 2, 3), [1], False)),
    ],
)
def mean(
    b: Builder, x: Ref, axes: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Ref:
    """The mean over axes."""
    return _reduce(b, x, axes, keepdim, dtype, mean=True)


@lowers(aten.mean.default, samples=lambda: [Sample((_x(1, 2, 3),))])
def mean_all(b: Builder, x: Ref, *, dtype: torch.dtype | None = None) -> Ref:
    """The mean of all entries."""
    return _reduce(b, x, None, False, dtype, mean=True)


@lowers(
    aten.sum.dim_IntList,
    samples=lambda: [Sample((_x(1, 2, 3, 4), [2, 3])), Sample((_x(1, 2, 3, 4), [1, -1], True))],
)
def sums(
    b: Builder, x: Ref, axes: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Ref:
    """The sum over axes."""
    return _reduce(b, x, axes, keepdim, dtype, mean=False)


@lowers(aten.sum.default, samples=lambda: [Sample((_x(1, 2, 3),))])
def sum_all(b: Builder, x: Ref, *, dtype: torch.dtype | None = None) -> Ref:
    """The sum of all entries."""
    return _reduce(b, x, None, False, dtype, mean=False)
