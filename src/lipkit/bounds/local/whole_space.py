"""Where every intermediate value of a network can lie whatever the input is."""

import math
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.measured_network import Affine, MeasuredNetwork, measure_network
from lipkit.bounds.properties.operator_signs import carried
from lipkit.bounds.properties.soft_maximum import SoftMaximum
from lipkit.regions import reach_of
from lipkit.rounding.slacks import ROUNDINGS_16, ROUNDINGS_128
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import Interpolation, Node, Normalization, Pointwise, Product, Softmax, Unit, VectorNorm
from lipkit.trace.nodes.attention.log_softmax import LogSumExp
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.window_maxima import WindowMax

# Covers a handful of roundings.
_ULPS = ROUNDINGS_16


def know_whole_space(network: Network) -> Network:
    """The same function, whose nodes without a constant know what they can receive from any input.

    A product of sigmoid(a) and tanh(b) is Lipschitz because both are bounded, and so is a cell of an LSTM: the ranges
    of all values on the whole space say so. Networks whose nodes all have constants are returned as they are.
    Guarantee: the ranges contain every value. Cost: five applications of every operator, unless
    a product receives something that nothing has bounded.
    """
    open_rows = {k for p in (1.0, 2.0, torch.inf) for k in network.without_constant(p)}
    if not open_rows or not _may_be_bounded(network, open_rows):
        return network
    if not all(bool(torch.isfinite(t).all()) for t in network.tensors() if t.is_floating_point()):
        return network
    reaches = reach_whole_space(measure_network(network))
    nodes = list(network.nodes)
    for k in open_rows:
        node, reach = nodes[k - 1], reaches[k - 1]
        # These know what to do with an end that is infinite; others are left as they are.
        if isinstance(node, Pointwise | Product | Interpolation) or _is_bounded(reach):
            nodes[k - 1] = node.within(reach_of(reach.low, reach.high, reach.center, reach.radius))
    return replace(network, nodes=tuple(nodes))


def _may_be_bounded(network: Network, open_rows: set[int]) -> bool:
    """Whether what the nodes without a constant receive may be bounded; cheap. A wrong no leaves a model refused.

    A product, unlike a root or a logarithm, needs bounds from both sides, so a value that nothing has bounded so far
    makes the search for ranges useless.
    """
    bounded, rows = {0: False}, network.rows()
    for k, node in enumerate(network.nodes, start=1):
        received = all(bounded[j] for j in rows[k])
        if k in open_rows and not received and not isinstance(node, Pointwise):
            return False
        bounded[k] = received or isinstance(node, Softmax | Unit | Normalization) or _has_bounded_values(node)
    return True


def _has_bounded_values(node: Node) -> bool:
    if not isinstance(node, Pointwise) or node.is_identity:
        return False
    end = torch.tensor(torch.inf, dtype=torch.float64)
    low, high = node.activation.values(-end, end)
    return bool(torch.isfinite(low).all() and torch.isfinite(high).all())


def reach_whole_space(found: MeasuredNetwork) -> list[Reach]:
    """A set for every row z_1, ..., z_(K+1): unbounded until a node bounds its entries from one side or from both."""
    with torch.no_grad():
        ys = [_unbounded_reach(torch.zeros(found.network.source, dtype=torch.float64, device=found.device))]
        zs: list[Reach] = []
        for k, row in found.fused.items():
            zs.append(_row(row, ys))
            if k < found.network.sink:
                ys.append(_through(found.network.nodes[k - 1], zs[-1]))
        return zs


def _is_bounded(reach: Reach) -> bool:
    return bool(torch.isfinite(reach.high - reach.low).all())


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
        case Product() | Interpolation():
            found = node.reach(z)
            return _box(found.low, found.high)
        case _ if _is_bounded(z):
            found = node.reach(reach_of(z.low, z.high, z.center, z.radius))
            return _box(found.low, found.high)
        case Softmax():
            return _between(node, z, 0.0, 1.0)
        case Unit():
            return _between(node, z, -1.0, 1.0)
        case Normalization():
            # |y|^2 < d in every group.
            size = math.sqrt(node.size[-1]) * (1 + _ULPS)
            return _between(node, z, -size, size)
        case VectorNorm():
            return _between(node, z, 0.0, math.inf)
        case _:
            return _between(node, z, -math.inf, math.inf)


def _between(node: Node, z: Reach, low: float, high: float) -> Reach:
    return _box(*(torch.full(node.target, end, dtype=torch.float64, device=z.low.device) for end in (low, high)))


def _finite(x: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x), x.abs(), 0.0)
