"""Sorting, maxima and minima along an axis, and other order statistics."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.nodes import Node
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.pointwise import RELU, Pointwise
from lipkit.trace.nodes.window_maxima import WindowMax
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import combination, shape_of
from lipkit.trace.rules.joining import along, drop_axes, group_axes, join
from lipkit.trace.rules.moving import broadcast

aten = torch.ops.aten
Pair = tuple[Ref, None]


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@lowers(aten.sort.default, samples=lambda: [Sample((_x(1, 4, 3),)), Sample((_x(1, 4, 3), 1, True))])
def sort(b: Builder, x: Ref, dim: int = -1, descending: bool = False) -> Pair:
    """Sorted along an axis: a permutation at every point, Lip = 1 in every l_p. Positions are refused."""
    step = -1 if descending else 1
    return along(b, x, dim, lambda shape: OrderStatistics(shape, tuple(range(shape[-1]))[::step])), None


@lowers(aten.sort.stable, samples=lambda: [Sample((_x(1, 4),), {"stable": True, "descending": True})])
def sort_stable(b: Builder, x: Ref, *, dim: int = -1, descending: bool = False, **_: Any) -> Pair:
    """The same values; only positions tell a stable sort from another."""
    return sort(b, x, dim, descending)


def _extreme(b: Builder, x: Ref, axes: Sequence[int], keepdim: bool, rank: int) -> Ref:
    values, _ = group_axes(b, x, axes)
    return drop_axes(b, b.node(OrderStatistics(values.shape, (rank,)), values), x, axes, keepdim)


@lowers(aten.amax.default, samples=lambda: [Sample((_x(1, 4, 3), [1, 2])), Sample((_x(1, 4, 3), [-2], True))])
def amax(b: Builder, x: Ref, dim: Sequence[int] = (), keepdim: bool = False) -> Ref:
    """The largest entry over some axes: Lip = 1 in every l_p."""
    return _extreme(b, x, dim, keepdim, -1)


@lowers(aten.amin.default, samples=lambda: [Sample((_x(1, 4, 3), [1, 2])), Sample((_x(1, 4, 3), [-2], True))])
def amin(b: Builder, x: Ref, dim: Sequence[int] = (), keepdim: bool = False) -> Ref:
    """The smallest entry over some axes: Lip = 1 in every l_p."""
    return _extreme(b, x, dim, keepdim, 0)


@lowers(aten.max.default, samples=lambda: [Sample((_x(1, 4, 3),))])
def largest(b: Builder, x: Ref) -> Ref:
    """The largest of all entries."""
    return _extreme(b, x, (), False, -1)


@lowers(aten.min.default, samples=lambda: [Sample((_x(1, 4, 3),))])
def smallest(b: Builder, x: Ref) -> Ref:
    """The smallest of all entries."""
    return _extreme(b, x, (), False, 0)


@lowers(aten.max.dim, samples=lambda: [Sample((_x(1, 4, 3), 1)), Sample((_x(1, 4, 3), -1, True))])
def max_along(b: Builder, x: Ref, dim: int, keepdim: bool = False) -> Pair:
    """The largest entry along an axis; its position is refused."""
    return _extreme(b, x, (dim,), keepdim, -1), None


@lowers(aten.min.dim, samples=lambda: [Sample((_x(1, 4, 3), 1)), Sample((_x(1, 4, 3), -1, True))])
def min_along(b: Builder, x: Ref, dim: int, keepdim: bool = False) -> Pair:
    """The smallest entry along an axis; its position is refused."""
    return _extreme(b, x, (dim,), keepdim, 0), None


@lowers(aten.aminmax.default, samples=lambda: [Sample((_x(1, 4, 3),), {"dim": 1}), Sample((_x(1, 4),))])
def aminmax(b: Builder, x: Ref, *, dim: int | None = None, keepdim: bool = False) -> tuple[Ref, Ref]:
    """Both extremes."""
    axes = () if dim is None else (dim,)
    return _extreme(b, x, axes, keepdim, 0), _extreme(b, x, axes, keepdim, -1)


@lowers(aten.kthvalue.default, samples=lambda: [Sample((_x(1, 4, 3), 2)), Sample((_x(1, 4, 3), 3, 1, True))])
def kth(b: Builder, x: Ref, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The k-th smallest entry along an axis."""
    return _extreme(b, x, (dim,), keepdim, k - 1), None


@lowers(aten.median.dim, samples=lambda: [Sample((_x(1, 4, 3), 1)), Sample((_x(1, 4, 3), -1, True))])
def median_along(b: Builder, x: Ref, dim: int, keepdim: bool = False) -> Pair:
    """torch's median: the lower of the two in the middle."""
    return _extreme(b, x, (dim,), keepdim, (x.shape[dim] - 1) // 2), None


@lowers(aten.median.default, samples=lambda: [Sample((_x(1, 4, 3),))])
def median(b: Builder, x: Ref) -> Ref:
    """The lower median of all entries."""
    values, _ = group_axes(b, x, ())
    return b.reshape(b.node(OrderStatistics(values.shape, ((values.shape[-1] - 1) // 2,)), values), ())


@lowers(aten.topk.default, samples=lambda: [Sample((_x(1, 5, 3), 2, 1)), Sample((_x(1, 5), 2, -1, False))])
def topk(b: Builder, x: Ref, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """The k largest (or smallest) entries, in order: a part of the sorted list."""
    if not sorted:
        raise Refusal("returns its values in no fixed order", "ask for them sorted")
    ranks = tuple(-1 - i for i in range(k)) if largest else tuple(range(k))
    return along(b, x, dim, lambda shape: OrderStatistics(shape, ranks)), None


@lowers(aten.cummax.default, samples=lambda: [Sample((_x(1, 4, 3), 1)), Sample((_x(1, 4), -1))])
def cummax(b: Builder, x: Ref, dim: int) -> Pair:
    """Running maxima: the first entry can decide all n results, so Lip = n^(1/p)."""
    return along(b, x, dim, _running), None


@lowers(aten.cummin.default, samples=lambda: [Sample((_x(1, 4, 3), 1))])
def cummin(b: Builder, x: Ref, dim: int) -> Pair:
    """Running minima, as the maxima of -x."""
    return combination(b, [(along(b, combination(b, [(x, -1)]), dim, _running), -1)]), None


def _running(shape: Sequence[int]) -> Node:
    # Window i is 0..i; its unused places repeat entry 0.
    places = torch.arange(shape[-1])
    return WindowMax(tuple(shape), torch.where(places[None] <= places[:, None], places[None], 0))


@lowers(
    aten.maximum.default,
    aten.fmax.default,
    aten.max.other,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(1, 3, 2)), wrt=(0, 1)),
        Sample((_x(1, 3, 2), _x(2)), wrt=(0, 1)),
        Sample((_x(1, 3, 2), _x(2))),
        Sample((_x(), _x(1, 2)), wrt=(1,)),
    ],
)
def maximum(b: Builder, x: Any, y: Any) -> Ref:
    """The larger of two values."""
    return _larger(b, x, y, 1)


@lowers(
    aten.minimum.default,
    aten.fmin.default,
    aten.min.other,
    samples=lambda: [Sample((_x(1, 3, 2), _x(1, 3, 2)), wrt=(0, 1)), Sample((_x(1, 3, 2), _x(2)))],
)
def minimum(b: Builder, x: Any, y: Any) -> Ref:
    """The smaller of two values."""
    return _larger(b, x, y, -1)


@lowers(aten.clamp_min.Tensor, samples=lambda: [Sample((_x(1, 3), _x(3))), Sample((_x(1, 3), _x(1, 3)), wrt=(0, 1))])
def clamp_min(b: Builder, x: Any, min: Any) -> Ref:
    """Cut from below by a tensor."""
    return _larger(b, x, min, 1)


@lowers(aten.clamp_max.Tensor, samples=lambda: [Sample((_x(1, 3), _x(3))), Sample((_x(1, 3), _x(1, 3)), wrt=(0, 1))])
def clamp_max(b: Builder, x: Any, max: Any) -> Ref:
    """Cut from above by a tensor."""
    return _larger(b, x, max, -1)


@lowers(
    aten.clamp.Tensor,
    aten.clip.Tensor,
    samples=lambda: [Sample((_x(1, 3), -_x(3).abs(), _x(3).abs())), Sample((_x(1, 3), None, _x(3)))],
)
def clamp(b: Builder, x: Ref, min: Any = None, max: Any = None) -> Ref:
    """Cut to intervals that are tensors."""
    below = x if min is None else _larger(b, x, min, 1)
    return below if max is None else _larger(b, below, max, -1)


def _larger(b: Builder, x: Any, y: Any, sign: int) -> Ref:
    """max(x, y), or min for sign -1, with broadcasting."""
    if not (isinstance(x, Ref) and isinstance(y, Ref)):
        # max(x, c) = c + relu(x - c), and min(x, c) = c - relu(c - x).
        value, fixed = (x, y) if isinstance(x, Ref) else (y, x)
        shifted = combination(b, [(value, sign), (fixed, -sign)])
        return combination(b, [(fixed, 1), (b.node(Pointwise(RELU, shifted.shape), shifted), sign)])
    target = tuple(torch.broadcast_shapes(shape_of(x), shape_of(y)))
    # One order for both ways to write a pair, so that its maximum and its minimum are seen to be of the same value.
    pair = sorted((x, y), key=lambda v: v.index)
    full = [v if v.shape == target else b.linear(broadcast(v.shape, target), v) for v in pair]
    both = b.reshape(join(b, full), (2, *target))
    values, _ = group_axes(b, both, (0,))
    return b.reshape(b.node(OrderStatistics(values.shape, (-1 if sign > 0 else 0,)), values), target)
