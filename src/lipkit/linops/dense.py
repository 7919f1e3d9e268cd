"""Operators given by their entries: a matrix, a stack of matrices, a diagonal."""

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


@final
@dataclass(frozen=True, eq=False)
class Diagonal(LinearOperator):
    """x -> scale x entrywise, on tensors of `shape`, to which `scale` broadcasts. Cost: one product per entry."""

    scale: Inexact[Tensor, "..."]
    shape: Shape

    def __post_init__(self) -> None:
        scale = tuple(self.scale.shape)
        # torch.broadcast_shapes says the same, and takes a tenth of the time of many bounds.
        offset = len(self.shape) - len(scale)
        fits = offset >= 0 and all(n in (1, self.shape[offset + i]) for i, n in enumerate(scale))
        if not fits:
            raise ShapeError(f"The scale of a Diagonal must broadcast to {self.shape}, got {scale}.")

    @property
    def in_shape(self) -> Shape:
        return self.shape

    @property
    def out_shape(self) -> Shape:
        return self.shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.scale * x

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.scale.conj() * y
