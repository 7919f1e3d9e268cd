"""Comparisons of values that depend on the input, and what they choose; only continuous choices stay in a network."""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.nodes import Pointwise
from lipkit.trace.nodes.activations.indicator import Indicator
from lipkit.trace.nodes.interpolation import Interpolation
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import combination, scale
from lipkit.trace.rules.joining import join
from lipkit.trace.rules.moving import broadcast
from lipkit.trace.rules.products.elementwise_binary import product

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _mask(*shape: int) -> Tensor:
    return torch.rand(shape) < 0.5


def _indicator(b: Builder, x: Ref, knot: float, above: bool, closed: bool) -> Ref:
    rounded = torch.tensor(knot, dtype=b.dtype).item()
    return b.node(Pointwise(Indicator(float(knot), above, closed, rounded), x.shape), x)


def _compares(scalar: OpOverload, tensor: OpOverload, above: bool, closed: bool) -> None:
    """Register a comparison with a number and one with a tensor."""

    def with_number(b: Builder, x: Ref, other: float) -> Ref:
        return _indicator(b, x, other, above, closed)

    def with_tensor(b: Builder, x: Any, other: Any) -> Ref:
        if isinstance(x, Ref) and (number := _number(other)) is not None:
            shape = tuple(torch.broadcast_shapes(x.shape, other.shape))
            return _indicator(
                b, x if x.shape == shape else b.linear(broadcast(x.shape, shape), x), number, above, closed
            )
        if isinstance(other, Ref) and (number := _number(x)) is not None:
            shape = tuple(torch.broadcast_shapes(x.shape, other.shape))
            moved = other if other.shape == shape else b.linear(broadcast(other.shape, shape), other)
            return _indicator(b, moved, number, not above, closed)
        return _indicator(b, combination(b, [(x, 1), (other, -1)]), 0.0, above, closed)

    _ = lowers(scalar, samples=lambda: [Sample((_x(1, 9), 0.25)), Sample((torch.tensor([[0.0, 1.0]]), 0))])(with_number)
    _ = lowers(
        tensor,
        samples=lambda: [
            Sample((_x(1, 9), torch.tensor(0.25))),
            Sample((torch.tensor(-0.25), _x(1, 9)), wrt=(1,)),
            Sample((_x(1, 9), _x(9))),
            Sample((_x(1, 2, 3), _x(1, 1, 3)), wrt=(0, 1)),
        ],
    )(with_tensor)


_compares(aten.gt.Scalar, aten.gt.Tensor, above=True, closed=False)
_compares(aten.ge.Scalar, aten.ge.Tensor, above=True, closed=True)
_compares(aten.lt.Scalar, aten.lt.Tensor, above=False, closed=False)
_compares(aten.le.Scalar, aten.le.Tensor, above=False, closed=True)


def _number(value: Any) -> float | None:
    """The number that all entries of a constant are, if they are one."""
    if not isinstance(value, Tensor) or not value.numel() or value.requires_grad:
        return None
    first = value.flatten()[0]
    return first.item() if bool((value == first).all()) else None


@lowers(aten.sign.default, aten.sgn.default, samples=lambda: [Sample((_x(1, 9),)), Sample((torch.zeros(1, 2),))])
def sign(b: Builder, x: Ref) -> Ref:
    """1 above 0, -1 below."""
    over, under = (_indicator(b, x, 0.0, above, closed=False) for above in (True, False))
    return combination(b, [(over, 1), (under, -1)])


@lowers(aten.logical_not.default, aten.bitwise_not.default, samples=lambda: [Sample((_mask(1, 9),))])
def logical_not(b: Builder, mask: Ref) -> Ref:
    """1 - mask."""
    return combination(b, [(1.0, 1), (mask, -1)])


def _pairs() -> list[Sample]:
    return [Sample((_mask(1, 2, 9), _mask(9)), wrt=(0, 1)), Sample((_mask(1, 9), _mask(9)))]


@lowers(
    aten.logical_and.default,
    aten.bitwise_and.Tensor,
    aten.__and__.Tensor,
    samples=_pairs,
)
def logical_and(b: Builder, first: Any, second: Any) -> Ref:
    """The product of two masks."""
    if isinstance(first, Ref) and isinstance(second, Ref):
        return product(b, first, second)
    value, other = (first, second) if isinstance(first, Ref) else (second, first)
    return scale(b, value, other.to(torch.float64))


@lowers(
    aten.logical_or.default,
    aten.bitwise_or.Tensor,
    aten.__or__.Tensor,
    samples=_pairs,
)
def logical_or(b: Builder, first: Any, second: Any) -> Ref:
    """The sum of two masks less their product."""
    parts = [x if isinstance(x, Ref) else x.to(torch.float64) for x in (first, second)]
    return combination(b, [(parts[0], 1), (parts[1], 1), (logical_and(b, first, second), -1)])


def choose(b: Builder, mask: Any, first: Any, second: Any) -> Ref:
    """`first` where the mask holds, `second` elsewhere: a mean with a weight of 0 or 1."""
    if not isinstance(mask, Ref):
        raise Refusal("the choice by a constant mask moves entries: it has a rule of its own", "use that one")
    if isinstance(first, Ref) and first == second and first.shape == mask.shape:
        return first
    others = [x if isinstance(x, Ref | Tensor) else torch.tensor(x, dtype=torch.float64) for x in (second, first)]
    shape = tuple(torch.broadcast_shapes(mask.shape, *(tuple(x.shape) for x in others)))
    parts = [x if isinstance(x, Ref) else b.constant(x.expand(shape)) for x in (mask, *others)]
    whole = [x if x.shape == shape else b.linear(broadcast(x.shape, shape), x) for x in parts]
    return b.node(Interpolation(shape), join(b, whole))


@lowers(
    aten.where.self,
    samples=lambda: [
        Sample((_mask(1, 6), _x(1, 6), _x(1, 6)), wrt=(0, 1, 2)),
        Sample((_mask(1, 6), _x(1, 6), _x()), wrt=(0, 1)),
        Sample((_mask(1, 2, 6), _x(6), _x(1, 1, 6)), wrt=(0, 2)),
    ],
)
@lowers(aten.where.ScalarOther, samples=lambda: [Sample((_mask(1, 6), _x(1, 6), 0.5), wrt=(0, 1))])
@lowers(aten.where.ScalarSelf, samples=lambda: [Sample((_mask(1, 6), 1.5, _x(1, 6)), wrt=(0, 2))])
@lowers(aten.where.Scalar, samples=lambda: [Sample((_mask(1, 6), 1.5, -1.0), wrt=(0,))])
def where(b: Builder, mask: Any, first: Any, second: Any) -> Ref:
    """The first value where the mask holds."""
    return choose(b, mask, first, second)


@lowers(aten.masked_fill.Scalar, samples=lambda: [Sample((_x(1, 6), _mask(1, 6), 0.5), wrt=(0, 1))])
@lowers(
    aten.masked_fill.Tensor,
    samples=lambda: [
        Sample((_x(1, 6), _mask(1, 6), torch.tensor(0.5)), wrt=(0, 1)),
        Sample((_x(1, 6), _mask(6), _x()), wrt=(0, 1, 2)),
    ],
)
def masked_fill(b: Builder, x: Any, mask: Any, value: Any) -> Ref:
    """The fill value where the mask holds."""
    return choose(b, mask, value, x)


# The operations whose results are masks; all others that give truth values are refused.
MASKS = frozenset(
    (
        aten.gt.Scalar, aten.gt.Tensor, aten.ge.Scalar, aten.ge.Tensor,
        aten.lt.Scalar, aten.lt.Tensor, aten.le.Scalar, aten.le.Tensor,
        aten.logical_not.default, aten.bitwise_not.default, aten.logical_and.default, aten.bitwise_and.Tensor,
        aten.logical_or.default, aten.bitwise_or.Tensor, aten.__and__.Tensor, aten.__or__.Tensor,
    )
)  # fmt: skip
