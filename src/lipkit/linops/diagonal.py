"""A diagonal matrix."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.linops._base import LinearOperator, Shape


@final
@dataclass(frozen=True, eq=False)
class Diagonal(LinearOperator):
    """x -> scale x entrywise, on tensors of `shape`, to which `scale` broadcasts. Cost: one product per entry."""

    scale: Inexact[Tensor, "..."]
    shape: Shape

    def __post_init__(self) -> None:
        scale = tuple(self.scale.shape)
        try:
            fits = torch.broadcast_shapes(scale, self.shape) == self.shape
        except RuntimeError:
            fits = False
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
