"""Operations that change the shape, the dtype or the storage of a tensor, and leave its entries alone."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.moving import broadcast

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@lowers(
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.positive.default,
    samples=lambda: [Sample((_x(1, 2, 3),))],
)
def same(_builder: Builder, x: Ref, *_: Any, **__: Any) -> Ref:
    """The value itself. (What `detach` does to gradients is no property of the function.)"""
    return x


@lowers(
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
    samples=lambda: [Sample((_x(1, 2, 3), 0.5, False))],
)
def dropout(_builder: Builder, x: Ref, _p: float, train: bool) -> Ref:
    """Dropout does nothing in evaluation mode."""
    if train:
        raise Refusal("draws random numbers", "evaluate with training=False")
    return x


@lowers(aten.to.dtype, samples=lambda: [Sample((_x(1, 2), torch.float64))])
@lowers(aten.to.dtype_layout, samples=lambda: [Sample((_x(1, 2),), {"dtype": torch.float64})])
@lowers(aten.type_as.default, samples=lambda: [Sample((_x(1, 2), _x(1)))])
def cast(_builder: Builder, x: Ref, dtype: object = None, *_: Any, **__: Any) -> Ref:
    """Between floating-point types: the identity of real arithmetic. Rounding to integers jumps and is refused.

    So is rounding to types of one byte: that is meant as part of the function, and steps of a sixteenth are no rounding
    errors any more.
    """
    kind = dtype.dtype if isinstance(dtype, Tensor) else dtype
    if isinstance(kind, torch.dtype) and (not kind.is_floating_point or kind.itemsize == 1):
        raise Refusal(f"rounds to {kind}, which jumps", "leave out the cast, or compute it from something constant")
    return x


@lowers(
    aten.view.default,
    aten.reshape.default,
    samples=lambda: [Sample((_x(1, 4, 6), [1, -1])), Sample((_x(1, 4, 6), [2, -1, 3])), Sample((_x(1, 1), []))],
)
def reshape(b: Builder, x: Ref, shape: Sequence[int]) -> Ref:
    """The same entries in another shape; -1 is what is left."""
    known = math.prod(n for n in shape if n != -1)
    return b.reshape(x, tuple(math.prod(x.shape) // known if n == -1 else n for n in shape))


@lowers(
    aten.flatten.using_ints,
    samples=lambda: [Sample((_x(1, 2, 3, 2), 1)), Sample((_x(1, 2, 3, 2), 1, 2)), Sample((_x(1, 2, 3, 2),))],
)
def flatten(b: Builder, x: Ref, first: int = 0, last: int = -1) -> Ref:
    """Several axes as one."""
    rank = len(x.shape)
    first, last = first % rank, last % rank
    return b.reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@lowers(
    aten.unflatten.int,
    samples=lambda: [Sample((_x(1, 6, 2), 1, [2, 3])), Sample((_x(1, 6, 2), -2, [2, -1]))],
)
def unflatten(b: Builder, x: Ref, axis: int, sizes: Sequence[int]) -> Ref:
    """One axis as several."""
    axis %= len(x.shape)
    return reshape(b, x, [*x.shape[:axis], *_fill(sizes, x.shape[axis]), *x.shape[axis + 1 :]])


def _fill(sizes: Sequence[int], total: int) -> list[int]:
    known = math.prod(n for n in sizes if n != -1)
    return [total // known if n == -1 else n for n in sizes]


@lowers(aten.unsqueeze.default, samples=lambda: [Sample((_x(1, 2), 1)), Sample((_x(1, 2), -1)), Sample((_x(1, 2), -3))])
def unsqueeze(b: Builder, x: Ref, axis: int) -> Ref:
    """A new axis of length one."""
    shape = list(x.shape)
    shape.insert(axis % (len(shape) + 1), 1)
    return b.reshape(x, tuple(shape))


@lowers(aten.squeeze.default, samples=lambda: [Sample((_x(1, 2, 1),))])
@lowers(aten.squeeze.dim, samples=lambda: [Sample((_x(1, 2, 1), 0)), Sample((_x(1, 2, 1), 1))])
@lowers(aten.squeeze.dims, samples=lambda: [Sample((_x(1, 2, 1), [0, 1])), Sample((_x(1, 2, 1), [0, -1]))])
def squeeze(b: Builder, x: Ref, axes: int | Sequence[int] | None = None) -> Ref:
    """Axes of length one left out: all of them, or those named."""
    rank = len(x.shape)
    named = range(rank) if axes is None else [a % rank for a in ([axes] if isinstance(axes, int) else axes)]
    return b.reshape(x, tuple(n for axis, n in enumerate(x.shape) if n != 1 or axis not in named))


@lowers(
    aten.expand.default,
    samples=lambda: [Sample((_x(1, 3, 1), [1, 3, 4])), Sample((_x(1, 3), [2, -1, 3])), Sample((_x(1, 3), [1, 3]))],
)
def expand(b: Builder, x: Ref, sizes: Sequence[int], *_: Any, **__: Any) -> Ref:
    """Axes of length one repeated, and new ones in front; -1 leaves an axis alone."""
    shape = (1,) * (len(sizes) - len(x.shape)) + x.shape
    target = tuple(have if want == -1 else want for want, have in zip(sizes, shape, strict=True))
    return x if target == x.shape else b.linear(broadcast(x.shape, target), x)
