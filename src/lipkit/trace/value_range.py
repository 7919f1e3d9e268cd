"""Where the values of a tensor can lie while the input stays in a region."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ShapeError


@final
@dataclass(frozen=True, eq=False)
class Reach:
    """A set that contains every value v of one tensor: low <= v <= high entrywise, and ||v - center||_2 <= radius.

    Both statements hold; either may be the tighter one. All tensors are float64 and without batch axis; the ends are
    rounded outward by whoever made them.
    """

    low: Float64[Tensor, "..."]
    high: Float64[Tensor, "..."]
    center: Float64[Tensor, "..."]
    radius: Float64[Tensor, ""]

    def __post_init__(self) -> None:
        if not (self.low.shape == self.high.shape == self.center.shape):
            raise ShapeError(
                f"A reach needs one shape, got {tuple(self.low.shape)}, {tuple(self.high.shape)} "
                f"and {tuple(self.center.shape)}."
            )
