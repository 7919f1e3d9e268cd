"""Products with a constant matrix, on either side."""

import math
from typing import Any

import torch
from torch import Tensor

from lipkit.linops import Conv, Dense, LinearOperator, Permute, Reshape, Shape
from lipkit.trace.network import Builder, Ref, Refusal, constant
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import combination
from lipkit.trace.rules.moving import broadcast

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def rowwise(shape: Shape, weight: Tensor) -> LinearOperator:
    """x -> x weight^T on the last axis of `shape`: one matrix at every position, a convolution with one tap."""
    outputs, inputs = weight.shape
    count = math.prod(shape[:-1])
    if count == 1:
        return Reshape((outputs,), (*shape[:-1], outputs)) @ Dense(weight) @ Reshape(shape, (inputs,))
    conv = Conv(weight[:, :, None], (count,), (1,), ((0, 0),), (1,))
    before = Permute((count, inputs), (1, 0)) @ Reshape(shape, (count, inputs))
    after = Reshape((count, outputs), (*shape[:-1], outputs)) @ Permute((outputs, count), (1, 0))
    return after @ conv @ before


def columnwise(shape: Shape, weight: Tensor) -> LinearOperator:
    """x -> weight_k x_k for each of the matrices x_k, where `shape` is (matrices, inputs, columns).

    One grouped convolution with one tap: a group for each matrix.
    """
    many, inputs, columns = shape
    outputs = weight.shape[1]
    conv = Conv(weight.reshape(many * outputs, inputs, 1), (columns,), (1,), ((0, 0),), (1,), groups=many)
    return (
        Reshape((many * outputs, columns), (many, outputs, columns)) @ conv @ Reshape(shape, (many * inputs, columns))
    )


@lowers(
    aten.linear.default,
    samples=lambda: [
        Sample((_x(1, 3), _x(2, 3), _x(2))),
        Sample((_x(1, 4, 3), _x(2, 3))),
        Sample((_x(1, 2, 4, 3), _x(2, 3), _x(2))),
        Sample((_x(1, 3), _x(2, 3), _x(2)), wrt=(0, 2)),
    ],
)
def linear(b: Builder, x: Ref, weight: Any, bias: Any = None) -> Ref:
    """x weight^T + bias."""
    weight = constant(weight, "the weight")
    if isinstance(x, Ref) and not isinstance(bias, Ref):
        return b.linear(rowwise(x.shape, weight), x, bias)
    product = b.linear(rowwise(x.shape, weight), x) if isinstance(x, Ref) else aten.linear.default(x, weight)
    return combination(b, [(product, 1), (bias, 1)])


@lowers(aten.mm.default, samples=lambda: [Sample((_x(1, 3), _x(3, 2))), Sample((_x(2, 3), _x(3, 1)), wrt=(1,))])
@lowers(
    aten.matmul.default,
    samples=lambda: [
        Sample((_x(1, 3), _x(3))),
        Sample((_x(3), _x(2, 3, 4))),
        Sample((_x(1, 2, 3), _x(3, 4))),
        Sample((_x(1, 2, 3), _x(4, 1, 3, 2))),
        Sample((_x(1, 4, 2, 3), _x(4, 3, 2))),
        Sample((_x(4, 3), _x(1, 3, 2)), wrt=(1,)),
        Sample((_x(2, 4, 3), _x(3)), wrt=(1,)),
        Sample((_x(3), _x(1, 3, 2)), wrt=(1,)),
        Sample((_x(2, 4, 3), _x(5, 1, 3, 2)), wrt=(1,)),
    ],
)
def matmul(b: Builder, x: Any, y: Any) -> Ref:
    """x y, where one of them is constant; as torch.matmul broadcasts them."""
    if isinstance(x, Ref) and isinstance(y, Ref):
        raise Refusal("both factors depend on the input", "replace the layer")
    if isinstance(x, Ref):
        return _from_right(b, x, y)
    return _from_left(b, x, y)


def _from_right(b: Builder, x: Ref, weight: Tensor) -> Ref:
    if weight.ndim <= 2:
        matrix = weight[:, None] if weight.ndim == 1 else weight
        found = b.linear(rowwise(x.shape, matrix.mT), x)
        return b.reshape(found, found.shape[:-1]) if weight.ndim == 1 else found
    if len(x.shape) == 1:
        found = _from_right(b, b.reshape(x, (1, *x.shape)), weight)
        return b.reshape(found, (*found.shape[:-2], found.shape[-1]))
    # (x W)^T = W^T x^T.
    return _transpose(b, _from_left(b, weight.mT, _transpose(b, x)))


def _from_left(b: Builder, weight: Tensor, x: Ref) -> Ref:
    if len(x.shape) == 1:
        found = _from_left(b, weight, b.reshape(x, (*x.shape, 1)))
        return b.reshape(found, found.shape[:-1])
    if weight.ndim == 1:
        found = _from_left(b, weight[None], x)
        return b.reshape(found, (*found.shape[:-2], found.shape[-1]))
    if weight.ndim == 2:
        return _transpose(b, b.linear(rowwise((*x.shape[:-2], x.shape[-1], x.shape[-2]), weight), _transpose(b, x)))
    batch = tuple(torch.broadcast_shapes(weight.shape[:-2], x.shape[:-2]))
    full = (*batch, *x.shape[-2:])
    if x.shape != full:
        x = b.linear(broadcast(x.shape, full), x)
    many = math.prod(batch)
    stacked = weight.expand(*batch, *weight.shape[-2:]).reshape(many, *weight.shape[-2:])
    op = columnwise((many, *x.shape[-2:]), stacked)
    return b.linear(Reshape(op.out_shape, (*batch, *op.out_shape[1:])) @ op @ Reshape(x.shape, op.in_shape), x)


def _transpose(b: Builder, x: Ref) -> Ref:
    rank = len(x.shape)
    return b.linear(Permute(x.shape, (*range(rank - 2), rank - 1, rank - 2)), x)


@lowers(aten.mv.default, samples=lambda: [Sample((_x(1, 3), _x(3))), Sample((_x(2, 3), _x(3)), wrt=(1,))])
def mv(b: Builder, x: Any, y: Any) -> Ref:
    """Matrix times vector."""
    return matmul(b, x, y)


@lowers(
    aten.dot.default, aten.inner.default, samples=lambda: [Sample((_x(3), _x(3))), Sample((_x(3), _x(3)), wrt=(1,))]
)
def dot(b: Builder, x: Any, y: Any) -> Ref:
    """The inner product of two vectors."""
    if any(len(v.shape) != 1 for v in (x, y)):
        raise Refusal("an inner product of more than vectors", "use matmul")
    return matmul(b, x, y)


@lowers(
    aten.bmm.default,
    samples=lambda: [Sample((_x(2, 3, 4), _x(2, 4, 2))), Sample((_x(2, 3, 4), _x(2, 4, 2)), wrt=(1,))],
)
def bmm(b: Builder, x: Any, y: Any) -> Ref:
    """Matrix by matrix."""
    return matmul(b, x, y)


@lowers(
    aten.addmm.default,
    samples=lambda: [
        Sample((_x(2), _x(1, 3), _x(3, 2)), {"beta": 2, "alpha": -0.5}, wrt=(1,)),
        Sample((_x(1, 2), _x(1, 3), _x(3, 2)), wrt=(0, 2)),
        Sample((_x(1, 2), _x(1, 3), _x(3, 2))),
    ],
)
@lowers(aten.addmv.default, samples=lambda: [Sample((_x(1), _x(1, 3), _x(3)), {"alpha": 2}, wrt=(0, 1))])
@lowers(aten.baddbmm.default, samples=lambda: [Sample((_x(2, 1, 2), _x(2, 3, 4), _x(2, 4, 2)), wrt=(0, 2))])
def addmm(b: Builder, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Ref:
    """beta bias + alpha x y."""
    product = matmul(b, x, y) if isinstance(x, Ref) or isinstance(y, Ref) else torch.matmul(x, y)
    return combination(b, [(product, alpha), (bias, beta)])
