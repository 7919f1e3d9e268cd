"""A matrix."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape
from lipkit.linops._promotion import promoted


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
        weight, x = promoted(self.weight, x)
        return x @ weight.mT

    def _adjoint(self, y: Tensor) -> Tensor:
        weight, y = promoted(self.weight, y)
        return y @ weight.conj()
