"""Products, quotients and matrix products of two values that both depend on the input."""

import math
from typing import Any

import torch
from torch import Tensor

from lipkit.linops import Permute, Shape, select
from lipkit.trace.network import Builder, Ref, Refusal, constant
from lipkit.trace.nodes import Pointwise
from lipkit.trace.nodes.activations.powers import RECIPROCAL, SQUARE
from lipkit.trace.nodes.activations.sigmoids import SIGMOID
from lipkit.trace.nodes.entrywise_product import Product
from lipkit.trace.nodes.interpolation import Interpolation
from lipkit.trace.nodes.matrix_product import MatrixProduct
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import combination, scale
from lipkit.trace.rules.averages import sums
from lipkit.trace.rules.joining import axis_back, join, last_axis
from lipkit.trace.rules.moving import broadcast

aten = torch.ops.aten

_ELSEWHERE = "has a rule of its own", "use that one"


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def product(b: Builder, x: Ref, y: Ref) -> Ref:
    """x y entry by entry, with broadcasting; a square if they are the same value."""
    if x == y:
        return b.node(Pointwise(SQUARE, x.shape), x)
    return b.node(Product(x.shape, y.shape), join(b, (x, y)))


def matrix_product(b: Builder, x: Ref, y: Ref) -> Ref:
    """x y as torch.matmul broadcasts them."""
    if len(x.shape) == 1:
        found = matrix_product(b, b.reshape(x, (1, *x.shape)), y)
        return b.reshape(found, (*found.shape[:-2], *found.shape[-1:]) if len(y.shape) > 1 else ())
    if len(y.shape) == 1:
        found = matrix_product(b, x, b.reshape(y, (*y.shape, 1)))
        # A vector on the left has already lost its axis where both are vectors.
        return b.reshape(found, found.shape[:-1])
    batch = tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    left, right = _full(b, x, batch), _full(b, y, batch)
    groups = math.prod(batch)
    node = MatrixProduct(groups, x.shape[-2], x.shape[-1], y.shape[-1])
    return b.reshape(b.node(node, join(b, (left, right))), (*batch, x.shape[-2], y.shape[-1]))


def _full(b: Builder, x: Ref, batch: Shape) -> Ref:
    target = (*batch, *x.shape[-2:])
    return x if math.prod(x.shape) == math.prod(target) else b.linear(broadcast(x.shape, target), x)


def _both(x: Any, y: Any) -> None:
    if not (isinstance(x, Ref) and isinstance(y, Ref)):
        raise Refusal("the product with a constant is linear: it " + _ELSEWHERE[0], _ELSEWHERE[1])


@lowers(
    aten.mul.Tensor,
    aten.multiply.Tensor,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(1, 3, 2)), wrt=(0, 1)),
        Sample((_x(1, 3, 2), _x(1, 3, 1)), wrt=(0, 1)),
        Sample((_x(1, 1, 2), _x(3, 1)), wrt=(0, 1)),
        Sample((_x(1, 2), _x()), wrt=(0, 1)),
    ],
)
def mul(b: Builder, x: Any, y: Any) -> Ref:
    """The product of two values: finite constants on a bounded region only."""
    _both(x, y)
    return product(b, x, y)


@lowers(
    aten.div.Tensor,
    aten.true_divide.Tensor,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(1, 3, 1).abs() + 1), wrt=(0, 1)),
        Sample((_x(3, 2), _x(1, 3, 1).abs() + 1), wrt=(1,)),
        Sample((2.0, _x(1, 3).abs() + 1), wrt=(1,)),
    ],
)
def div(b: Builder, x: Any, y: Any) -> Ref:
    """The quotient by a value: its reciprocal, then the product."""
    if not isinstance(y, Ref):
        raise Refusal("the quotient by a constant is linear: it " + _ELSEWHERE[0], _ELSEWHERE[1])
    inverse = b.node(Pointwise(RECIPROCAL, y.shape), y)
    return product(b, x, inverse) if isinstance(x, Ref) else scale(b, inverse, x)


@lowers(
    aten.expand_as.default,
    samples=lambda: [Sample((_x(1, 3, 1), _x(1, 3, 2)), wrt=(0, 1)), Sample((_x(3, 1), _x(1, 3, 2)), wrt=(1,))],
)
def expand_as(b: Builder, x: Any, other: Any) -> Ref:
    """x repeated to the shape of another value, whose entries do not matter."""
    target = tuple(other.shape)
    if not isinstance(x, Ref):
        return b.constant(x.expand(target))
    return b.linear(broadcast(x.shape, target), x)


@lowers(
    aten.matmul.default,
    samples=lambda: [
        Sample((_x(1, 2, 3), _x(1, 3, 2)), wrt=(0, 1)),
        Sample((_x(1, 2, 2, 3), _x(2, 3, 1)), wrt=(0, 1)),
        Sample((_x(1, 2, 3), _x(3)), wrt=(0, 1)),
        Sample((_x(3), _x(1, 3, 2)), wrt=(0, 1)),
        Sample((_x(3), _x(3)), wrt=(0, 1)),
    ],
)
def matmul(b: Builder, x: Any, y: Any) -> Ref:
    """The matrix product of two values: finite constants on a bounded region only."""
    _both(x, y)
    return matrix_product(b, x, y)


@lowers(aten.mm.default, samples=lambda: [Sample((_x(2, 3), _x(3, 2)), wrt=(0, 1))])
@lowers(aten.bmm.default, samples=lambda: [Sample((_x(2, 2, 3), _x(2, 3, 2)), wrt=(0, 1))])
@lowers(aten.mv.default, samples=lambda: [Sample((_x(2, 3), _x(3)), wrt=(0, 1))])
@lowers(aten.dot.default, samples=lambda: [Sample((_x(3), _x(3)), wrt=(0, 1))])
def mm(b: Builder, x: Any, y: Any) -> Ref:
    """The same for matrices and vectors of fixed rank."""
    _both(x, y)
    return matrix_product(b, x, y)


@lowers(aten.addmm.default, samples=lambda: [Sample((_x(2), _x(1, 3), _x(3, 2)), {"alpha": 2, "beta": 3}, wrt=(1, 2))])
@lowers(aten.baddbmm.default, samples=lambda: [Sample((_x(2, 1, 2), _x(2, 1, 3), _x(2, 3, 2)), wrt=(0, 1, 2))])
def addmm(b: Builder, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Ref:
    """beta bias + alpha x y."""
    _both(x, y)
    return combination(b, [(matrix_product(b, x, y), alpha), (bias, beta)])


@lowers(aten.outer.default, samples=lambda: [Sample((_x(2), _x(3)), wrt=(0, 1))])
def outer(b: Builder, x: Any, y: Any) -> Ref:
    """The outer product of two vectors."""
    _both(x, y)
    return product(b, b.reshape(x, (*x.shape, 1)), y)


@lowers(
    aten.addcmul.default,
    samples=lambda: [
        Sample((_x(1, 2), _x(1, 2), _x(1, 2)), {"value": 2}, wrt=(0, 1, 2)),
        Sample((_x(1, 2), _x(2), _x(1, 2)), wrt=(0, 2)),
    ],
)
def addcmul(b: Builder, x: Any, first: Any, second: Any, *, value: float = 1) -> Ref:
    """x + value first second."""
    if isinstance(first, Ref) and isinstance(second, Ref):
        return combination(b, [(x, 1), (product(b, first, second), value)])
    if not (isinstance(first, Ref) or isinstance(second, Ref)):
        return combination(b, [(x, 1), (first * second, value)])
    first, second = (first, second) if isinstance(first, Ref) else (second, first)
    part = scale(b, first, constant(second, "the other factor"))
    return combination(b, [(x, 1), (part, value)])


@lowers(
    aten.lerp.Tensor,
    samples=lambda: [
        Sample((_x(1, 3), _x(1, 3), _x(1, 3).sigmoid()), wrt=(0, 1, 2)),
        Sample((_x(1, 2, 3), _x(3), _x(1, 2, 1).sigmoid()), wrt=(0, 2)),
        Sample((_x(3), _x(1, 3), _x(1, 3)), wrt=(2,)),
    ],
)
def lerp(b: Builder, start: Any, end: Any, weight: Any) -> Ref:
    """start + weight (end - start) for a weight that depends on the input."""
    if not isinstance(weight, Ref):
        raise Refusal("the mean with a constant weight is linear: it " + _ELSEWHERE[0], _ELSEWHERE[1])
    shape = tuple(torch.broadcast_shapes(weight.shape, start.shape, end.shape))
    parts = (x if isinstance(x, Ref) else b.constant(x) for x in (weight, start, end))
    whole = [x if x.shape == shape else b.linear(broadcast(x.shape, shape), x) for x in parts]
    return b.node(Interpolation(shape), join(b, whole))


@lowers(
    aten.einsum.default,
    samples=lambda: [
        Sample(("bhqd,bhkd->bhqk", [_x(1, 2, 3, 2), _x(1, 2, 4, 2)]), wrt=(1,)),
        Sample(("bhqk, bkhd -> bqhd", [_x(1, 2, 3, 4), _x(1, 4, 2, 2)]), wrt=(1,)),
        Sample(("bi,bj", [_x(1, 2), _x(1, 3)]), wrt=(1,)),
        Sample(("bij,bk->i", [_x(1, 2, 3), _x(1, 3)]), wrt=(1,)),
    ],
)
def einsum(b: Builder, equation: str, operands: list[Any], **_: Any) -> Ref:
    """Two values multiplied and summed over letters: a product of matrices for each letter that both keep."""
    inputs, _arrow, output = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    if len(operands) != 2 or not all(isinstance(x, Ref) for x in operands):
        raise Refusal("is no product of two values that depend on the input", "write it with matmul")
    if "." in equation or any(len(set(name)) != len(name) for name in names):
        raise Refusal(f"'{equation}' has an ellipsis or a diagonal", "write it with matmul")
    letters = "".join(names)
    if not _arrow:
        output = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    first, second = (
        _sum_out(b, x, name, [c for c in name if letters.count(c) == 1 and c not in output])
        for x, name in zip(operands, names, strict=True)
    )
    (x, left), (y, right) = first, second
    both = [c for c in left if c in right]
    batch, inner = [c for c in both if c in output], [c for c in both if c not in output]
    rows, cols = [c for c in left if c not in both], [c for c in right if c not in both]
    sizes = dict(zip(left + right, x.shape + y.shape, strict=True))
    found = matrix_product(
        b,
        _as_matrices(b, x, left, [batch, rows, inner], sizes),
        _as_matrices(b, y, right, [batch, inner, cols], sizes),
    )
    made = [*batch, *rows, *cols]
    return _permute(b, b.reshape(found, tuple(sizes[c] for c in made)), made, list(output))


def _sum_out(b: Builder, x: Ref, name: str, gone: list[str]) -> tuple[Ref, str]:
    """x without the letters that occur nowhere else."""
    kept = "".join(c for c in name if c not in gone)
    return (sums(b, x, [name.index(c) for c in gone]) if gone else x), kept


def _as_matrices(b: Builder, x: Ref, name: str, parts: list[list[str]], sizes: dict[str, int]) -> Ref:
    """x as a stack of matrices, each axis a product of letters."""
    order = [c for part in parts for c in part]
    shape = tuple(math.prod(sizes[c] for c in part) for part in parts)
    return b.reshape(_permute(b, x, list(name), order), shape)


def _permute(b: Builder, x: Ref, name: list[str], order: list[str]) -> Ref:
    axes = tuple(name.index(c) for c in order)
    return x if axes == tuple(range(len(axes))) else b.linear(Permute(x.shape, axes), x)


@lowers(aten.glu.default, samples=lambda: [Sample((_x(1, 4, 3), 1)), Sample((_x(1, 6),))])
def glu(b: Builder, x: Ref, dim: int = -1) -> Ref:
    """The first half times the sigmoid of the second: finite constants on a bounded region only."""
    moved = last_axis(b, x, dim)
    half = moved.shape[-1] // 2
    first, second = (_half(b, moved, slice(start, start + half)) for start in (0, half))
    return axis_back(b, product(b, first, b.node(Pointwise(SIGMOID, second.shape), second)), dim)


def _half(b: Builder, x: Ref, key: slice) -> Ref:
    return b.linear(select(x.shape, (..., key)), x)
