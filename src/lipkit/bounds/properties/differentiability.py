"""Whether a network has a derivative at every point: a proof, a proven kink, or neither."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from lipkit.bounds.local.jacobian_intervals import Span, backward, slopes_of
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Ranges
from lipkit.bounds.lower.search_lines import CounterexampleSearch, contains
from lipkit.bounds.properties.operator_signs import reached
from lipkit.bounds.properties.second_derivatives import is_smooth
from lipkit.bounds.properties.value_ranges import reaches, require_finite
from lipkit.bounds.properties.verdict import Finding, ProofAnswer, ProofVerdict
from lipkit.errors import NonFiniteError, UnsupportedError
from lipkit.regions import Box, Everywhere, Region
from lipkit.rounding.float64 import gamma
from lipkit.rounding.slacks import ROUNDINGS_8192
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import Activation, Node, Pointwise
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.window_maxima import WindowMax

# Candidates that are examined, in all and on one line, and how short a segment is in units of a step, in turn.
_CANDIDATES = 24
_ON_ONE_LINE = 3
_SHORT = (2.0**-8, 2.0**-16)


@final
@dataclass(frozen=True, eq=False)
class _Crossing:
    """Between two neighbouring points of a line, entry `entry` of z_k passes the kink at `place`."""

    node: int
    entry: int
    place: float
    before: Float64[Tensor, "..."]
    after: Float64[Tensor, "..."]


def kinked_segments(
    found: MeasuredNetwork,
    reach: Callable[[Region], list[Reach]],
    region: Region,
    search: CounterexampleSearch,
    outputs: list[int],
) -> dict[int, Float64[Tensor, "2 ..."]]:
    """For as many of `outputs` as possible the two ends of a segment of the region with a kink in between.

    Guarantee: interval arithmetic on a box around the segment proves that exactly one neuron passes a kink there, that
    it does so with a speed other than 0, and that the output moves with it, also not by 0. Then the one-sided
    derivatives along the segment differ. Cost: the evaluation of the lines, and some passes of intervals a candidate.
    """
    proven: dict[int, Tensor] = {}
    if not all(isinstance(node, Pointwise) for node in found.network.nodes):
        return proven
    left = _CANDIDATES
    for line in (line for lines in search.through(found.network, region) for line in lines):
        for crossing in _crossings(found.network, line)[:_ON_ONE_LINE]:
            missing = [i for i in outputs if i not in proven]
            if not missing or not left:
                return proven
            left -= 1
            for segment in _segments(found.network, crossing):
                if bool(contains(region, segment).all()):
                    proven |= dict.fromkeys(_proven(found, reach, crossing, segment, missing), segment)
    return proven


def _into(network: Network, x: Float64[Tensor, "batch ..."]) -> list[Float64[Tensor, "batch ..."]]:
    """z_1, ..., z_K on a batch, approximately."""
    ys = network.values(x)
    zs: list[Tensor] = []
    for k, row in network.rows().items():
        z = x.new_zeros((len(x), *network.shape_into(k)))
        if k in network.biases:
            z = z + network.biases[k].to(x)
        for j, op in row.items():
            z = z + op.apply(ys[j])
        zs.append(z)
    return zs[:-1]


def _crossings(network: Network, line: Float64[Tensor, "points ..."]) -> list[_Crossing]:
    """Where neurons pass their kinks along the line, the first place for each; later nodes first."""
    found: list[_Crossing] = []
    for k, z in enumerate(_into(network, line), start=1):
        node = network.nodes[k - 1]
        assert isinstance(node, Pointwise)
        for kink in node.activation.kinks:
            side = torch.sign(z.flatten(1) - kink)
            changes = (side[:-1] != side[1:]).int()
            at = changes.argmax(0)
            for entry in changes.any(0).nonzero().flatten().tolist():
                place = int(at[entry])
                found.append(_Crossing(k, entry, kink, line[place], line[place + 1]))
    return found[::-1]


def _segments(network: Network, crossing: _Crossing) -> Iterator[Float64[Tensor, "2 ..."]]:
    """Shorter and shorter segments around the place where the neuron passes its kink."""
    step = crossing.after - crossing.before
    low, width = 0.0, 1.0
    for _ in range(4):
        grid = low + width * torch.linspace(0, 1, 65, dtype=torch.float64, device=step.device)
        points = crossing.before + grid.reshape(-1, *(1,) * step.ndim) * step
        z = _into(network, points)[crossing.node - 1].flatten(1)[:, crossing.entry] - crossing.place
        change = (z[:-1].sign() != z[1:].sign()).int()
        low, width = float(grid[change.argmax()]), width / 64
    for length in _SHORT:
        yield torch.stack([crossing.before + (low + sign * length) * step for sign in (-1, 1)])


def _proven(
    found: MeasuredNetwork,
    reach: Callable[[Region], list[Reach]],
    crossing: _Crossing,
    segment: Float64[Tensor, "2 ..."],
    outputs: list[int],
) -> list[int]:
    """The outputs that provably have a kink on the segment."""
    network = found.network
    k, entry = crossing.node, crossing.entry
    node = network.nodes[k - 1]
    assert isinstance(node, Pointwise)
    first, last = (reach(Box(x, x))[k - 1] for x in segment)
    passes = _beyond(first, last, entry, crossing.place) or _beyond(last, first, entry, crossing.place)
    zs = reach(Box(segment.amin(0), segment.amax(0)))
    if not (passes and _alone(network, zs) and _jumps(node.activation, zs[k - 1], entry, crossing.place)):
        return []
    try:
        slopes = slopes_of(found, zs)
    except (NonFiniteError, UnsupportedError):
        return []
    unit = torch.zeros(1, *node.shape, dtype=torch.float64, device=segment.device)
    unit.view(-1)[entry] = 1
    if not _moves(backward(found, slopes, k, unit)[0], segment):
        return []
    units = torch.zeros(len(outputs), math.prod(network.target), dtype=torch.float64, device=segment.device)
    units[torch.arange(len(outputs)), outputs] = 1
    on_y = backward(found, slopes, network.sink, units.reshape(-1, *network.target))[1]
    if k not in on_y:
        return []
    under, over = (end.flatten(1)[:, entry] for end in on_y[k].ends)
    return [i for i, nonzero in zip(outputs, ((under > 0) | (over < 0)).tolist(), strict=True) if nonzero]


def _beyond(first: Reach, last: Reach, entry: int, place: float) -> bool:
    return float(first.high.flatten()[entry]) < place < float(last.low.flatten()[entry])


def _alone(network: Network, zs: list[Reach]) -> bool:
    """Whether only one kink of one neuron lies in range."""
    count = 0
    for node, z in zip(network.nodes, zs[:-1], strict=True):
        assert isinstance(node, Pointwise)
        for kink in node.activation.kinks:
            inside = (z.low < kink) & (kink < z.high)
            count += int(inside.sum())
    return count == 1


def _jumps(activation: Activation, z: Reach, entry: int, place: float) -> bool:
    """Whether the slopes on the two sides of the kink differ for certain."""
    at = torch.full_like(z.low, place)
    left, right = activation.slopes(z.low.clamp(max=place), at), activation.slopes(at, z.high.clamp(min=place))
    (a, b), (c, d) = ([float(end.expand(z.low.shape).flatten()[entry]) for end in ends] for ends in (left, right))
    return b < c or d < a


def _moves(rows: Span, segment: Float64[Tensor, "2 ..."]) -> bool:
    """Whether the derivative along the segment is not 0 anywhere on it."""
    direction = (segment[1] - segment[0]).flatten()
    mid, width = rows.mid.flatten(), rows.width.flatten()
    speed = float(mid @ direction)
    slack = gamma(len(direction) + 8) * float(mid.abs() @ direction.abs())
    return abs(speed) > (float(width @ direction.abs()) + 2 * slack) * (1 + ROUNDINGS_8192)


# In the place of an infinite end: within this interval slopes must be finite for the function to have any.
_FAR = 512.0


def is_differentiable(
    network: Network,
    region: Region = Everywhere(),
    ranges: Ranges | None = None,
    search: CounterexampleSearch | None = None,
) -> ProofVerdict:
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
    found = measure_network(network)
    with torch.no_grad():
        reach = reaches(found, ranges)
        blame = _first_kinks(found, reach(region))
        findings = [
            Finding(ProofAnswer.PROVEN, "no kink lies in the range of its activation")
            if k == 0
            else Finding(
                ProofAnswer.UNKNOWN, f"{network.origin(k)}: {network.nodes[k - 1]} may have a kink in its range"
            )
            for k in blame.flatten().tolist()
        ]
        open_ = [i for i, finding in enumerate(findings) if finding.answer is ProofAnswer.UNKNOWN]
        for i, points in kinked_segments(found, reach, region, search or CounterexampleSearch(), open_).items():
            findings[i] = Finding(ProofAnswer.DISPROVEN, "a point of the segment `witness` is a kink", points)
    return ProofVerdict("differentiable", region, tuple(findings))


def _first_kinks(found: MeasuredNetwork, zs: list[Reach]) -> Tensor:
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
