"""Where the values of a network can lie, on a bounded region or on the whole space."""

from collections.abc import Callable

import torch

from lipkit.bounds.local.measured_network import MeasuredNetwork
from lipkit.bounds.local.ranges import Intervals, Ranges
from lipkit.bounds.local.whole_space import reach_whole_space
from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network, Reach


def reaches(found: MeasuredNetwork, method: Ranges | None = None) -> Callable[[Region], list[Reach]]:
    """A set for every row z_1, ..., z_(K+1) on any region: by `method` (`Intervals()`) if that is bounded.

    On the whole space entries are unbounded until an activation bounds them from one side or from both. What holds
    there is exact where it is zero, and is intersected with the ranges on bounded regions.
    Guarantee: contains every value, rounding is outward.
    """
    anywhere = reach_whole_space(found)
    bounded = (Intervals() if method is None else method).prepare(found.network)

    def on(region: Region) -> list[Reach]:
        if region == Everywhere():
            return anywhere
        return [
            Reach(torch.maximum(z.low, all_.low), torch.minimum(z.high, all_.high), z.center, z.radius)
            for z, all_ in zip(bounded(region), anywhere, strict=True)
        ]

    return on


def require_finite(network: Network) -> None:
    """Refuse weights that are NaN or infinite, and models that were not captured."""
    if not isinstance(network, Network):
        raise ArgumentError(
            f"This needs a captured network, got {type(network).__name__}; give lipkit.capture(model, x)."
        )
    if not all(bool(torch.isfinite(t).all()) for t in network.tensors() if t.is_floating_point()):
        raise NonFiniteError("The network has NaN or infinite weights, so nothing can be proven; repair them first.")
