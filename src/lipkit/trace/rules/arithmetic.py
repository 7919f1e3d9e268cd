"""Sums of values, and products with constants."""

import math

import torch
from torch import Tensor

from lipkit.linops import Diagonal, LinearOperator, Reshape, Shape
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.moving import broadcast

aten = torch.ops.aten
Value = Ref | Tensor | float | int


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def shape_of(value: Value) -> Shape:
    """The shape of a value or a constant."""
    return tuple(value.shape) if isinstance(value, Ref | Tensor) else ()


def combination(b: Builder, terms: list[tuple[Value, float]]) -> Ref:
    """sum of factor * value with broadcasting, at least one of the values a reference."""
    target = tuple(torch.broadcast_shapes(*(shape_of(value) for value, _ in terms)))
    linear: list[tuple[LinearOperator, Ref]] = []
    bias: Tensor | None = None
    for value, factor in terms:
        if isinstance(value, Ref):
            op = broadcast(value.shape, target)
            linear.append((op if factor == 1 else op * float(factor), value))
        else:
            # Constants that are computed here are computed in float64, so that they are those of real arithmetic.
            part = factor * value.to(torch.float64) if isinstance(value, Tensor) and factor != 1 else value
            if not isinstance(part, Tensor):
                part = torch.tensor(factor * part, dtype=torch.float64)
            bias = part if bias is None else bias + part
    return b.affine(linear, bias)


@lowers(
    aten.add.Tensor,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(1, 3, 2)), wrt=(0, 1)),
        Sample((_x(1, 3, 2), _x(2)), {"alpha": 2}),
        Sample((_x(3, 1), _x(1, 1, 2)), {"alpha": -0.5}, wrt=(0, 1)),
        Sample((_x(2), _x(1, 2)), wrt=(1,)),
        Sample((_x(1, 2), 3.5)),
    ],
)
def add(b: Builder, x: Value, y: Value, *, alpha: float = 1) -> Ref:
    """x + alpha y."""
    return combination(b, [(x, 1), (y, alpha)])


@lowers(aten.add.Scalar, samples=lambda: [Sample((_x(1, 2), 3.5)), Sample((_x(1, 2), 3.5, 2))])
def add_number(b: Builder, x: Ref, y: float, alpha: float = 1) -> Ref:
    """x + alpha y for a number y."""
    return combination(b, [(x, 1), (y, alpha)])


@lowers(
    aten.sub.Tensor,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(1, 3, 2)), wrt=(0, 1)),
        Sample((_x(1, 3, 2), _x(2)), {"alpha": 2}),
        Sample((_x(2), _x(1, 2)), wrt=(1,)),
        Sample((_x(1, 2), 3.5)),
    ],
)
def sub(b: Builder, x: Value, y: Value, *, alpha: float = 1) -> Ref:
    """x - alpha y."""
    return combination(b, [(x, 1), (y, -alpha)])


@lowers(aten.sub.Scalar, samples=lambda: [Sample((_x(1, 2), 3.5)), Sample((_x(1, 2), 3.5, 2))])
def sub_number(b: Builder, x: Ref, y: float, alpha: float = 1) -> Ref:
    """x - alpha y for a number y."""
    return combination(b, [(x, 1), (y, -alpha)])


@lowers(aten.rsub.Scalar, samples=lambda: [Sample((_x(1, 2), 1)), Sample((_x(1, 2), 1.5, 2))])
@lowers(aten.rsub.Tensor, samples=lambda: [Sample((_x(1, 2), _x(2)), {"alpha": 2})])
def rsub(b: Builder, x: Value, y: Value, alpha: float = 1) -> Ref:
    """y - alpha x."""
    return combination(b, [(y, 1), (x, -alpha)])


@lowers(aten.neg.default, samples=lambda: [Sample((_x(1, 2),))])
def neg(b: Builder, x: Ref) -> Ref:
    """-x."""
    return combination(b, [(x, -1)])


@lowers(
    aten.mul.Tensor,
    aten.multiply.Tensor,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(3, 1))),
        Sample((_x(1, 3, 2), _x())),
        Sample((_x(3, 1), _x(1, 1, 2)), wrt=(1,)),
        Sample((_x(1, 2), -2)),
    ],
)
def mul(b: Builder, x: Value, y: Value) -> Ref:
    """The product with a constant."""
    if isinstance(x, Ref) and isinstance(y, Ref):
        raise Refusal("both factors depend on the input", "replace the layer")
    if isinstance(y, Ref):
        x, y = y, x
    assert isinstance(x, Ref)
    assert not isinstance(y, Ref)
    return scale(b, x, y)


@lowers(aten.mul.Scalar, samples=lambda: [Sample((_x(1, 2), -2.5))])
def mul_number(b: Builder, x: Ref, y: float) -> Ref:
    """The product with a number."""
    return scale(b, x, y)


@lowers(
    aten.div.Tensor,
    aten.true_divide.Tensor,
    samples=lambda: [Sample((_x(1, 3, 2), _x(3, 1))), Sample((_x(1, 3), _x())), Sample((_x(1, 3), 3))],
)
def div(b: Builder, x: Value, y: Value) -> Ref:
    """The quotient by a constant."""
    if isinstance(y, Ref):
        raise Refusal("the divisor depends on the input", "replace the layer")
    if not isinstance(y, Tensor):
        return div_number(b, _ref(x), y)
    # In float64; `scale` makes room for the rounding of the reciprocal.
    inverse = y.to(torch.float64).reciprocal()
    if not bool(torch.isfinite(inverse).all()):
        raise _by_nothing("a constant that is 0 or NaN in some entries")
    return scale(b, _ref(x), inverse, rounded=True)


@lowers(aten.div.Scalar, samples=lambda: [Sample((_x(1, 2), -3.0))])
def div_number(b: Builder, x: Ref, y: float) -> Ref:
    """The quotient by a number."""
    inverse = 1 / y if y else math.inf
    if not math.isfinite(inverse):
        raise _by_nothing(f"{y:g}")
    return scale(b, x, inverse)


def _by_nothing(divisor: str) -> Refusal:
    return Refusal(
        f"divides by {divisor}", "use a divisor whose reciprocal is finite; without one there is no constant"
    )


def scale(b: Builder, x: Ref, factor: Tensor | float, rounded: bool = False) -> Ref:
    """x times a constant, with broadcasting; `rounded` says that the constant carries one rounding error itself."""
    target = tuple(torch.broadcast_shapes(x.shape, shape_of(factor)))
    spread = broadcast(x.shape, target)
    if not isinstance(factor, Tensor):
        return b.linear(spread * float(factor), x)
    if not factor.is_floating_point():
        factor = factor.to(torch.float64)
    if factor.ndim == 0:
        # An operator scaled by a number counts one rounding of the number.
        return b.linear(spread * factor, x)
    op: LinearOperator = Diagonal(factor, target)
    if rounded:
        op = op * 1.0
    return b.linear(op if isinstance(spread, Reshape) and x.shape == target else op @ spread, x)


def _ref(value: Value) -> Ref:
    assert isinstance(value, Ref)
    return value
