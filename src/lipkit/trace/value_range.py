"""Where the values of a tensor can lie while the input stays in a region."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.rounding.float64 import round_up
from lipkit.rounding.slacks import ROUNDINGS_8, ULP


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


def center_in_box(reach: Reach) -> Float64[Tensor, "..."]:
    """The center moved into the box: no point of the reach gets farther from it, for the box is convex."""
    return torch.minimum(torch.maximum(reach.center, reach.low), reach.high)


def tighten(reach: Reach) -> Reach:
    """The same reach with its two statements used together: the box cut to the ball, the center in the box."""
    slack = ULP * (reach.center.abs() + reach.radius)
    # An entry of -inf is a masked one: the ball says nothing new of it.
    finite = torch.isfinite(reach.center)
    low = torch.where(finite, torch.maximum(reach.low, reach.center - reach.radius - slack), reach.low)
    high = torch.where(finite, torch.minimum(reach.high, reach.center + reach.radius + slack), reach.high)
    return Reach(low, high, torch.minimum(torch.maximum(reach.center, low), high), reach.radius)


Domain = tuple[Float64[Tensor, "..."], Float64[Tensor, "..."], Float64[Tensor, "..."], Float64[Tensor, ""]]


def domain_of(reach: Reach) -> Domain:
    """A combined reach as the tuple of its tensors, which a node may keep as a field."""
    both = tighten(reach)
    return both.low, both.high, both.center, both.radius


def reach_of(
    low: Float64[Tensor, "..."],
    high: Float64[Tensor, "..."],
    center: Float64[Tensor, "..."],
    radius: Float64[Tensor, ""],
) -> Reach:
    """The reach of these statements, with its center in the box and its radius no larger than the box allows."""
    center = torch.minimum(torch.maximum(center, low), high)
    farthest = torch.maximum(high - center, center - low)
    spread = round_up(torch.linalg.vector_norm(farthest), farthest.numel() + 3)
    # An unbounded statement may be infinite times zero; it says nothing, and the other one stands.
    radius = torch.where(torch.isnan(radius), torch.inf, radius) * (1 + ROUNDINGS_8)
    return Reach(low, high, center, torch.minimum(radius, torch.where(torch.isnan(spread), torch.inf, spread)))
