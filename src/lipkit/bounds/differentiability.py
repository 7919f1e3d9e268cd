"""Whether a network has a derivative at every point: a proof, a proven kink, or neither."""

import torch
from jaxtyping import Bool
from torch import Tensor

from lipkit.bounds._kinks import kinked_segments
from lipkit.bounds._measured import MeasuredNetwork, measured
from lipkit.bounds._second_order import is_smooth
from lipkit.bounds._segments import Search
from lipkit.bounds._signs import reached
from lipkit.bounds._whole_space import reaches, require_finite
from lipkit.bounds.ranges import Ranges
from lipkit.bounds.verdict import Answer, Finding, Verdict
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import Activation, Node, Pointwise
from lipkit.trace.nodes.order import OrderStatistics
from lipkit.trace.nodes.windows import WindowMax

# In the place of an infinite end: within this interval slopes must be finite for the function to have any.
_FAR = 512.0


def is_differentiable(
    network: Network, region: Region = Everywhere(), ranges: Ranges | None = None, search: Search | None = None
) -> Verdict:
    """Whether every entry of the output is a differentiable function at every point of `region`.

    Proven for an entry if no kink of an activation it depends on lies inside the range of the activation's argument,
    and no two arguments of a maximum can tie. A kink at the end of a range does no harm: the argument stays on one
    side of it. Otherwise kinks are looked for along lines, and DISPROVEN comes with the two ends of a short segment of
    the region on which one point has no derivative: on it one neuron changes sides, its argument and the output move
    with it at a rate that is proven not to be zero, and no other kink is near.

    Guarantee: PROVEN and DISPROVEN are proofs about the function of real arithmetic. UNKNOWN names the node whose kink
    is in range. Cost: one pass of ranges, then the search (networks of pointwise nodes only).
    """
    require_finite(network)
    found = measured(network)
    with torch.no_grad():
        reach = reaches(found, ranges)
        blame = _blamed(found, reach(region))
        findings = [
            Finding(Answer.PROVEN, "no kink lies in the range of its activation")
            if k == 0
            else Finding(Answer.UNKNOWN, f"{network.origin(k)}: {network.nodes[k - 1]} may have a kink in its range")
            for k in blame.flatten().tolist()
        ]
        open_ = [i for i, finding in enumerate(findings) if finding.answer is Answer.UNKNOWN]
        for i, points in kinked_segments(found, reach, region, search or Search(), open_).items():
            findings[i] = Finding(Answer.DISPROVEN, "a point of the segment `witness` is a kink", points)
    return Verdict("differentiable", region, tuple(findings))


def _blamed(found: MeasuredNetwork, zs: list[Reach]) -> Tensor:
    """For every output the first node with a kink in range that it depends on; 0 for none."""
    network = found.network
    into: dict[int, Tensor] = {}
    out = {0: torch.zeros(network.source, dtype=torch.int64, device=found.device)}
    for k, row in found.fused.items():
        into[k] = torch.zeros(network.shape_into(k), dtype=torch.int64, device=found.device)
        for j, block in row.blocks.items():
            for name in out[j].unique().tolist():
                if name:
                    hit = reached(block.op, out[j] == name)
                    into[k] = torch.where(hit & ((into[k] == 0) | (into[k] > name)), name, into[k])
        if k < network.sink:
            out[k] = _through(network.nodes[k - 1], k, into[k], zs[k - 1])
    return into[network.sink]


def _through(node: Node, k: int, before: Tensor, z: Reach) -> Tensor:
    match node:
        case Pointwise():
            return torch.where((before == 0) & rough(node.activation, z), k, before)
        case WindowMax():
            clear = _one_wins(z.low[..., node.windows], z.high[..., node.windows], node.windows)
        case OrderStatistics():
            clear = _never_tie(z.low, z.high)[..., None].expand(node.target)
        case _:
            clear = torch.full(node.target, is_smooth(node), device=before.device)
    # An entry may be any of those before it, so a kink in one of them counts for all.
    first = int(before[before > 0].min()) if bool(before.any()) else 0
    return torch.where(clear, first, first or k)


def rough(activation: Activation, z: Reach) -> Bool[Tensor, "..."]:
    """Where a kink lies strictly inside the range of the argument, or the slope has no bound on bounded parts of it."""
    found = torch.zeros_like(z.low, dtype=torch.bool)
    for kink in activation.kinks:
        found = found | ((z.low < kink) & (kink < z.high))
    alpha, beta = activation.slopes(z.low.clamp(-_FAR, _FAR), z.high.clamp(-_FAR, _FAR))
    bounded = torch.isfinite(alpha) & torch.isfinite(beta)
    # Beyond the interval only an argument that stays there is asked about again.
    far = (z.low > _FAR) | (z.high < -_FAR)
    if bool(far.any()):
        alpha, beta = activation.slopes(z.low, z.high)
        bounded = torch.where(far, torch.isfinite(alpha) & torch.isfinite(beta), bounded)
    return found | ~bounded


def _one_wins(low: Tensor, high: Tensor, windows: Tensor) -> Bool[Tensor, "..."]:
    """Whether one position of every window is the largest throughout; repetitions of it do not count against it."""
    best = low.argmax(-1, keepdim=True)
    winner = torch.gather(windows.expand(low.shape), -1, best)
    rival = torch.where(windows.expand(low.shape) == winner, -torch.inf, high).amax(-1)
    return low.amax(-1) > rival


def _never_tie(low: Tensor, high: Tensor) -> Bool[Tensor, "..."]:
    """Whether the ranges along the last axis are disjoint."""
    low, order = low.sort(-1)
    high = torch.gather(high, -1, order)
    return (high[..., :-1] < low[..., 1:]).all(-1)
