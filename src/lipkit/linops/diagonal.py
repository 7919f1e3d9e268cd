"""A diagonal matrix."""

from dataclasses import dataclass
from typing import final

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
