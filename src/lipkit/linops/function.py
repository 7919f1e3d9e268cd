"""Any linear callable as an operator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.linops._base import LinearOperator, Shape


@final
@dataclass(frozen=True, eq=False)
class LinearFunction(LinearOperator):
    """x -> fn(x, *parameters), for a callable that is linear in x of shape (batch, *source), sample by sample.

    The adjoint is the vector-Jacobian product of autograd, which for a callable that is linear over the complex numbers
    is the Hermitian adjoint. Linearity is believed, not checked; put tensors that the callable needs in `parameters`,
    so that moves and gradients reach them. Cost: the adjoint is one forward and one backward pass.
    """

    fn: Callable[..., Tensor]
    source: Shape
    target: Shape
    parameters: tuple[Tensor, ...] = ()

    @property
    def in_shape(self) -> Shape:
        return self.source

    @property
    def out_shape(self) -> Shape:
        return self.target

    def _apply(self, x: Tensor) -> Tensor:
        y = self.fn(x, *self.parameters)
        if tuple(y.shape) != (x.shape[0], *self.target):
            expected = (x.shape[0], *self.target)
            raise ShapeError(
                f"The callable of LinearFunction gave {tuple(y.shape)}, expected (batch, *target) = {expected}."
            )
        return y
