"""A matrix, and many of one shape."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape, promote


@final
@dataclass(frozen=True, eq=False)
class Dense(LinearOperator):
    """x -> weight x for a real or complex matrix; the adjoint is the conjugate transpose. Cost: out * in."""

    weight: Inexact[Tensor, "out in"]

    def __post_init__(self) -> None:
        if self.weight.ndim != 2:
            raise ShapeError(f"Dense needs a matrix, got a weight of shape {tuple(self.weight.shape)}.")
        if not (self.weight.is_floating_point() or self.weight.is_complex()):
            raise ArgumentError(f"Dense needs floating-point weights, got {self.weight.dtype}; convert them first.")

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[1],)

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0],)

    def _apply(self, x: Tensor) -> Tensor:
        weight, x = promote(self.weight, x)
        return x @ weight.mT

    def _adjoint(self, y: Tensor) -> Tensor:
        weight, y = promote(self.weight, y)
        return y @ weight.conj()


@final
@dataclass(frozen=True, eq=False)
class DenseStack(LinearOperator):
    """diag(W_1, ..., W_m) for matrices of one shape, (m, in) -> (m, out), by one batched product."""

    weight: Inexact[Tensor, "m out in"]

    def __post_init__(self) -> None:
        if self.weight.ndim != 3:
            raise ShapeError(f"DenseStack needs a stack of matrices, got a weight of shape {tuple(self.weight.shape)}.")

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[0], self.weight.shape[2])

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0], self.weight.shape[1])

    def _apply(self, x: Tensor) -> Tensor:
        weight, x = promote(self.weight, x)
        return (x.transpose(0, 1) @ weight.mT).transpose(0, 1)

    def _adjoint(self, y: Tensor) -> Tensor:
        weight, y = promote(self.weight, y)
        return (y.transpose(0, 1) @ weight.conj()).transpose(0, 1)
