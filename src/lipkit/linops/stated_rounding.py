"""An operator whose rounding error is known better than its structure tells."""

from dataclasses import dataclass
from typing import final

from torch import Tensor

from lipkit.linops._base import LinearOperator, Shape


@final
@dataclass(frozen=True, eq=False)
class Stated(LinearOperator):
    """`inner`, evaluated with an error of at most gamma_roundings * size in the spectral norm.

    `roundings` is the longest chain of rounded operations, `size` the sum over all stages of what the stage's rounding
    errors are relative to, times the norms of the parts before and behind it. A long product is far more accurate than
    the product of the sizes of its factors says, and whoever knows the norms of its parts can state it here. It is a
    statement about these tensors: with other ones it must be made anew.
    """

    inner: LinearOperator
    roundings: int
    size: float

    @property
    def in_shape(self) -> Shape:
        return self.inner.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.inner.out_shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.inner._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.inner._adjoint(y)
