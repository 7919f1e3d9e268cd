"""Where the values of a network can lie, on a bounded region or on the whole space."""

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.measured_network import Affine, MeasuredNetwork
from lipkit.bounds.local.ranges import Intervals, Ranges
from lipkit.bounds.properties.operator_signs import carried
from lipkit.bounds.properties.soft_maximum import SoftMaximum
from lipkit.errors import NonFiniteError
from lipkit.regions import Everywhere, Region
from lipkit.rounding.slacks import ROUNDINGS_16, ROUNDINGS_128
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import Node, Pointwise
from lipkit.trace.nodes.attention.log_softmax import LogSumExp
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.window_maxima import WindowMax

# Covers a handful of roundings.
_ULPS = ROUNDINGS_16


def reaches(found: MeasuredNetwork, method: Ranges | None = None) -> Callable[[Region], list[Reach]]:
    """A set for every row z_1, ..., z_(K+1) on any region: by `method` (`Intervals()`) if that is bounded.

    On the whole space entries are unbounded until an activation bounds them from one side or from both. What holds
    there is exact where it is zero, and is intersected with the ranges on bounded regions.
    Guarantee: contains every value, rounding is outward.
    """
    anywhere = _whole_space(found)
    bounded = (Intervals() if method is None else method).prepare(found.network)

    def on(region: Region) -> list[Reach]:
        if region == Everywhere():
            return anywhere
        return [
            Reach(torch.maximum(z.low, all_.low), torch.minimum(z.high, all_.high), z.center, z.radius)
            for z, all_ in zip(bounded(region), anywhere, strict=True)
        ]

    return on


def _whole_space(found: MeasuredNetwork) -> list[Reach]:
    with torch.no_grad():
        ys = [_unbounded_reach(torch.zeros(found.network.source, dtype=torch.float64, device=found.device))]
        zs: list[Reach] = []
        for k, row in found.fused.items():
            zs.append(_row(row, ys))
            if k < found.network.sink:
                ys.append(_through(found.network.nodes[k - 1], zs[-1]))
        return zs


def require_finite(network: Network) -> None:
    """Refuse weights that are NaN or infinite."""
    if not all(bool(torch.isfinite(t).all()) for t in network.tensors() if t.is_floating_point()):
        raise NonFiniteError("The network has NaN or infinite weights, so nothing can be proven; repair them first.")


def _unbounded_reach(like: Tensor) -> Reach:
    return _box(torch.full_like(like, -torch.inf), torch.full_like(like, torch.inf))


def _box(low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Reach:
    return Reach(low, high, torch.zeros_like(low).clamp(low, high), low.new_tensor(torch.inf))


def _row(row: Affine, ys: list[Reach]) -> Reach:
    slack = row.slack()
    mid, error = row.shift, slack * row.shift.abs() + row.error
    width = torch.zeros_like(mid)
    above, below = torch.zeros_like(mid, dtype=torch.bool), torch.zeros_like(mid, dtype=torch.bool)
    for j, block in row.blocks.items():
        low, high = ys[j].low, ys[j].high
        up, down = carried(block.op, torch.isposinf(high), torch.isneginf(low))
        above, below = above | up, below | down
        # In the place of an infinite end stands the other one: where it matters the result is infinite anyway.
        known_low = torch.where(torch.isneginf(low), torch.where(torch.isposinf(high), 0.0, high), low)
        known_high = torch.where(torch.isposinf(high), known_low, high)
        mid = mid + block.op.apply(known_low / 2 + known_high / 2)
        width = width + block.tight.apply(known_high / 2 - known_low / 2)
        error = error + slack * block.stages.apply(known_low.abs() + known_high.abs())
    reach = (width + error) * (1 + 4 * slack)
    reach = reach + torch.where(reach > 0, _ULPS * mid.abs(), 0.0)
    return _box(torch.where(below, -torch.inf, mid - reach), torch.where(above, torch.inf, mid + reach))


def _through(node: Node, z: Reach) -> Reach:
    match node:
        case Pointwise():
            low, high = node.activation.values(z.low, z.high)
            return _box(low.expand(node.target), high.expand(node.target))
        case OrderStatistics() | WindowMax():
            # Both rise with every entry.
            return _box(node(z.low[None])[0], node(z.high[None])[0])
        case SoftMaximum() | LogSumExp():
            # They rise too; a sum of exponentials and a logarithm are within 2^-46 of their sizes.
            low, high = node(z.low[None])[0], node(z.high[None])[0]
            scale = node.mu if isinstance(node, SoftMaximum) else 1.0
            slack = ROUNDINGS_128 * scale * node.shape[-1]
            return _box(low - _finite(low) * ROUNDINGS_128 - slack, high + _finite(high) * ROUNDINGS_128 + slack)
        case _:
            return _unbounded_reach(torch.zeros(node.target, dtype=torch.float64, device=z.low.device))


def _finite(x: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x), x.abs(), 0.0)
