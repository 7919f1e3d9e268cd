"""Batch normalisation in evaluation mode, as the diagonal it is."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape
from lipkit.linops.elementary import Diagonal


@final
@dataclass(frozen=True, eq=False)
class BatchNorm(LinearOperator):
    """x -> weight / sqrt(variance + eps) x on each channel, the first axis of `shape`; no weight means ones.

    The scale is computed at use, in the dtype of the tensors: `to(torch.float64)` gives the scale of real arithmetic up
    to float64 rounding, not the widened float32 one. Cost: one product per entry.
    """

    weight: Float[Tensor, " channels"] | None
    variance: Float[Tensor, " channels"]
    eps: float
    shape: Shape

    def __post_init__(self) -> None:
        channels = tuple(self.variance.shape)
        if not self.shape or channels != self.shape[:1]:
            raise ShapeError(
                f"BatchNorm on shape {self.shape} needs one variance for each channel, got shape {channels}."
            )
        if self.weight is not None and tuple(self.weight.shape) != channels:
            raise ShapeError(f"BatchNorm needs a weight of shape {channels}, got {tuple(self.weight.shape)}.")
        if self.eps < 0:
            raise ArgumentError(f"eps must not be negative, got {self.eps}.")

    @property
    def in_shape(self) -> Shape:
        return self.shape

    @property
    def out_shape(self) -> Shape:
        return self.shape

    @property
    def diagonal(self) -> Diagonal:
        """The same operator as a `Diagonal`, live in weight and variance."""
        deviation = (self.variance + self.eps).sqrt()
        scale = deviation.reciprocal() if self.weight is None else self.weight / deviation
        return Diagonal(scale.reshape(-1, *(1,) * (len(self.shape) - 1)), self.shape)

    def _apply(self, x: Tensor) -> Tensor:
        return self.diagonal.apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.diagonal.adjoint(y)
