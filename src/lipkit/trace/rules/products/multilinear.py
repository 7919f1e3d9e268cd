"""Products of more than two values, and sums of products: prod, and the form behind nn.Bilinear."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit.linops import Index, select
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import scale
from lipkit.trace.rules.averages import sums
from lipkit.trace.rules.joining import last_axis
from lipkit.trace.rules.products.elementwise_binary import product

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@lowers(aten.prod.default, samples=lambda: [Sample((_x(1, 5),)), Sample((_x(1, 1),))])
def prod(b: Builder, x: Ref, *, dtype: torch.dtype | None = None) -> Ref:
    """The product of all entries: finite constants on a bounded region only."""
    del dtype
    return b.reshape(_multiply_up(b, b.reshape(x, (math.prod(x.shape),))), ())


@lowers(
    aten.prod.dim_int,
    samples=lambda: [Sample((_x(1, 4), 1)), Sample((_x(1, 3, 2), 1, True)), Sample((_x(1, 5, 2), -2))],
)
def prod_dim(b: Builder, x: Ref, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Ref:
    """The same along an axis: pairs of entries are multiplied until one is left."""
    del dtype
    axis = dim % len(x.shape)
    found = _multiply_up(b, last_axis(b, x, axis))
    shape = [1 if i == axis else size for i, size in enumerate(x.shape) if keepdim or i != axis]
    return b.reshape(found, tuple(shape))


def _multiply_up(b: Builder, x: Ref) -> Ref:
    """The product along the last axis, which becomes 1."""
    if not math.prod(x.shape):
        raise Refusal("the product of no entries is a constant", "leave it out")
    while (count := x.shape[-1]) > 1:
        half = (count + 1) // 2
        first, second = (_cut(b, x, slice(*ends)) for ends in ((0, count - half), (half, count)))
        made = product(b, first, second)
        if count % 2:
            # The one in the middle has no partner: it waits for the next round.
            alone = _cut(b, x, slice(count - half, half))
            made = product(b, made, alone) if made.shape[-1] == 1 else _beside(b, made, alone)
        x = made
    return x


def _beside(b: Builder, first: Ref, second: Ref) -> Ref:
    """Both along the last axis."""
    size, more = first.shape[-1], second.shape[-1]
    terms = []
    for part, start in ((first, 0), (second, size)):
        entries = torch.arange(math.prod(part.shape)).reshape(part.shape)
        slots = torch.full((*part.shape[:-1], size + more), -1)
        slots[..., start : start + part.shape[-1]] = entries
        terms.append((Index(slots, part.shape), part))
    return b.affine(terms)


def _cut(b: Builder, x: Ref, key: slice) -> Ref:
    return b.linear(select(x.shape, (..., key)), x)


@lowers(
    aten._trilinear.default,
    samples=lambda: [
        Sample((_x(1, 3), _x(2, 3, 4), _x(1, 4), [1, 3], [0], [1, 2], [2, 3]), wrt=(0, 2)),
        Sample((_x(1, 3), _x(2, 3, 4), _x(1, 4), [1, 3], [0], [1, 2], [2, 3]), wrt=(0,)),
        Sample((_x(1, 3), _x(1, 3), _x(1, 3), [], [], [], [1]), wrt=(0, 1, 2)),
    ],
)
def trilinear(
    b: Builder,
    x: Any,
    y: Any,
    z: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Ref:
    """The sum over some axes of x y z, each with axes of length one put in: nn.Bilinear."""
    del unroll_dim
    factors = [_with_axes(b, part, at) for part, at in ((x, expand1), (y, expand2), (z, expand3))]
    values = [part for part in factors if isinstance(part, Ref)]
    for constant in (part for part in factors if isinstance(part, Tensor)):
        values[0] = scale(b, values[0], constant)
    left = set(sumdim)
    found = values[0]
    for other in values[1:]:
        # What the other factor does not have is summed first: fewer products are left.
        early = [axis for axis in left if other.shape[axis] == 1 and found.shape[axis] > 1]
        found = product(b, _sum_kept(b, found, early), other)
        left -= set(early)
    found = _sum_kept(b, found, [axis for axis in left if found.shape[axis] > 1])
    return b.reshape(found, tuple(size for i, size in enumerate(found.shape) if i not in sumdim))


def _with_axes(b: Builder, x: Any, axes: Sequence[int]) -> Any:
    shape = list(x.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return b.reshape(x, tuple(shape)) if isinstance(x, Ref) else x.reshape(shape)


def _sum_kept(b: Builder, x: Ref, axes: Sequence[int]) -> Ref:
    return sums(b, x, list(axes), True) if axes else x
