"""Rounding to the safe side, and reaches whose two statements agree."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.logarithm import log_of, moved
from lipkit.trace.value_range import Reach


def log_above(value: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """An upper bound of log(value) for value >= 0; exact at 0 and 1."""
    return moved(log_of(value), 1.0)


def above(value: Float64[Tensor, "..."], operations: int) -> Float64[Tensor, "..."]:
    """An upper bound of a number >= 0 that took this many roundings, none of which cancels; exact at 0."""
    # Each rounding is one unit in the last place or less; elementary functions take two.
    return value * (1 + (operations + 2) * 2.0**-51)


def below(value: Float64[Tensor, "..."], operations: int) -> Float64[Tensor, "..."]:
    """A lower bound of a number >= 0 that took this many roundings, none of which cancels; exact at 0."""
    return value * (1 - (operations + 2) * 2.0**-51)


def norm_above(x: Float64[Tensor, "..."], dims: int | tuple[int, ...]) -> Float64[Tensor, "..."]:
    """An upper bound of the l2 norm over some axes."""
    axes = (dims,) if isinstance(dims, int) else dims
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    # A sum of `count` squares in any order: at most count + 2 roundings.
    return above(torch.linalg.vector_norm(x, dim=axes), count + 2)


def within_box(reach: Reach) -> Float64[Tensor, "..."]:
    """The center moved into the box: no point of the reach gets farther from it, for the box is convex."""
    return torch.minimum(torch.maximum(reach.center, reach.low), reach.high)


def combined(reach: Reach) -> Reach:
    """The same reach with its two statements used together: the box cut to the ball, the center in the box."""
    slack = 2.0**-52 * (reach.center.abs() + reach.radius)
    # An entry of -inf is a masked one: the ball says nothing new of it.
    finite = torch.isfinite(reach.center)
    low = torch.where(finite, torch.maximum(reach.low, reach.center - reach.radius - slack), reach.low)
    high = torch.where(finite, torch.minimum(reach.high, reach.center + reach.radius + slack), reach.high)
    return Reach(low, high, torch.minimum(torch.maximum(reach.center, low), high), reach.radius)


Domain = tuple[Float64[Tensor, "..."], Float64[Tensor, "..."], Float64[Tensor, "..."], Float64[Tensor, ""]]


def domain_of(reach: Reach) -> Domain:
    """A combined reach as the tuple of its tensors, which a node may keep as a field."""
    both = combined(reach)
    return both.low, both.high, both.center, both.radius


def settled(
    low: Float64[Tensor, "..."],
    high: Float64[Tensor, "..."],
    center: Float64[Tensor, "..."],
    radius: Float64[Tensor, ""],
) -> Reach:
    """The reach of these statements, with its center in the box and its radius no larger than the box allows."""
    center = torch.minimum(torch.maximum(center, low), high)
    farthest = torch.maximum(high - center, center - low)
    spread = above(torch.linalg.vector_norm(farthest), farthest.numel() + 3)
    # An unbounded statement may be infinite times zero; it says nothing, and the other one stands.
    radius = torch.where(torch.isnan(radius), torch.inf, radius) * (1 + 2.0**-50)
    return Reach(low, high, center, torch.minimum(radius, torch.where(torch.isnan(spread), torch.inf, spread)))
