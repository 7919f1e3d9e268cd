"""Bounds of the gradients of tensors inside a linear operator, from norms of what goes in and what comes back."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import final

from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.linops import (
    Adjoint,
    BlockColumn,
    BlockDiagonal,
    BlockRow,
    CircularConv,
    Compose,
    Conv,
    ConvExponential,
    ConvTranspose,
    Dense,
    DenseStack,
    Diagonal,
    LinearOperator,
    Permute,
    Reshape,
    Scaled,
    StatedRounding,
    Sum,
)
from lipkit.linops.composites import parts_of
from lipkit.norms.convolutions.skew_series import is_skew
from lipkit.privacy.record_limits.kernel_counts import kernel_factor
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

Size = Callable[[LinearOperator], float]
_UP = 1 + MILLIONS_OF_ROUNDINGS


@final
@dataclass(frozen=True, eq=False)
class Use:
    """A tensor of an operator, and a bound of the norm of its gradient where it is used there."""

    tensor: Tensor
    bound: float


def uses(op: LinearOperator, x: float, g: float, size: Size) -> Iterator[Use]:
    """The trained tensors of an operator with bounds of their gradients, if |input| <= x and |d loss / d output| <= g.

    A part of a product receives what the parts before it let through, and gets back what those behind it send back;
    `size` bounds the norms of these. A tensor that occurs twice is listed twice: its bounds add up.
    """
    if not _trained(op):
        return
    match op:
        case Compose(outer, inner):
            # A norm is measured only where a trained tensor needs it.
            if _trained(inner):
                yield from uses(inner, x, g * _size(outer, size), size)
            if _trained(outer):
                yield from uses(outer, x * _size(inner, size), g, size)
        case Adjoint(inner):
            # <g, A* x> = <A g, x>: the same form, with its arguments exchanged.
            yield from uses(inner, g, x, size)
        case StatedRounding(inner):
            yield from uses(inner, x, g, size)
        case Scaled(factor, inner):
            if factor.requires_grad:
                # The derivative is <g, A x>.
                yield Use(factor, x * g * _size(inner, size))
            yield from uses(inner, x * abs(float(factor.detach())), g, size)
        case BlockDiagonal(parts):
            # Each part sees a piece of x and of g, and sum_i |x_i| |g_i| <= |x| |g|: the largest counts, not the sum.
            largest: dict[Tensor, float] = {}
            for part in parts:
                for tensor, bound in _added(uses(part, x, g, size)).items():
                    largest[tensor] = max(bound, largest.get(tensor, 0.0))
            yield from (Use(tensor, bound) for tensor, bound in largest.items())
        case Sum() | BlockRow() | BlockColumn():
            for part in parts_of(op):
                yield from uses(part, x, g, size)
        case ConvExponential():
            yield Use(_weight(op), x * g * kernel_factor(op.conv) * _series_slope(op, size(op.conv)))
        case _:
            yield Use(_weight(op), x * g * gradient_factor(op))


def _added(found: Iterator[Use]) -> dict[Tensor, float]:
    """The bounds of each tensor, added up; tensors are told apart by identity."""
    total: dict[Tensor, float] = {}
    for use in found:
        total[use.tensor] = total.get(use.tensor, 0.0) + use.bound
    return total


def _series_slope(op: ConvExponential, a: float) -> float:
    """A bound of |d S(A) / d A| for S(A) = sum over j <= n of A^j / j! and |A| <= a: sum over j < n of a^j / j!.

    The derivative of exp at A in the direction E is the integral of exp((1 - s) A) E exp(s A) over s in [0, 1], of norm
    at most |E| for a skew A, whose exponentials are orthogonal. The terms beyond n that S leaves out add at most
    sum over j >= n of a^j / j!, which is at most a^n / n! / (1 - a / (n + 1)).
    """
    n = op.degree
    every = math.fsum(a**j / math.factorial(j) for j in range(n))
    if not is_skew(op) or a >= n + 1:
        return every * _UP
    return min(every, 1 + a**n / math.factorial(n) / (1 - a / (n + 1))) * _UP


def _size(op: LinearOperator, size: Size) -> float:
    return 1.0 if _only_moves(op) else size(op)


def _only_moves(op: LinearOperator) -> bool:
    """Whether an operator puts entries elsewhere, and does nothing else."""
    if isinstance(op, Compose):
        return all(_only_moves(part) for part in parts_of(op))
    return isinstance(op, Reshape | Permute)


def _trained(op: LinearOperator) -> list[Tensor]:
    return [t for t in op.tensors() if t.requires_grad]


def _weight(op: LinearOperator) -> Tensor:
    trained = _trained(op)
    if len(trained) != 1:
        raise UnsupportedError(f"{op} holds {len(trained)} trained tensors, for which there is no rule; freeze them.")
    return trained[0]


@singledispatch
def gradient_factor(op: LinearOperator) -> float:
    """f with |d loss / d weight|_2 <= f |x|_2 |g|_2, for the one weight of an operator; others are refused."""
    raise UnsupportedError(
        f"The gradient of the weight of {op} has no rule; freeze it with requires_grad_(False), or use a linear layer, "
        "a convolution or a scale in its place."
    )


@gradient_factor.register(Dense)
@gradient_factor.register(DenseStack)
@gradient_factor.register(Diagonal)
def _one(op: Dense | DenseStack | Diagonal) -> float:
    """g x' has norm |g| |x|; for a diagonal, also one that broadcasts, sum_k (sum_p g_kp x_kp)^2 <= |g|^2 |x|^2."""
    return float(op.in_size > 0)


@gradient_factor.register(Conv)
@gradient_factor.register(ConvTranspose)
def _kernel(op: Conv | ConvTranspose) -> float:
    return kernel_factor(op)


@gradient_factor.register(CircularConv)
def _circle(op: CircularConv) -> float:
    return kernel_factor(op.conv)
