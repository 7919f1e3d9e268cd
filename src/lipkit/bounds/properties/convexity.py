"""Whether a network is convex in its input: a proof, a counter-example, or neither."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from lipkit.bounds.local.measured_network import Affine, MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Intervals, Ranges
from lipkit.bounds.lower.search_lines import CounterexampleSearch
from lipkit.bounds.properties.hessian_bounds import Curved, curved
from lipkit.bounds.properties.operator_signs import carried, reached
from lipkit.bounds.properties.soft_maximum import SoftMaximum
from lipkit.bounds.properties.value_ranges import reaches, require_finite
from lipkit.bounds.properties.verdict import Finding, ProofAnswer, ProofVerdict
from lipkit.errors import NonFiniteError, TooLargeError, UnsupportedError
from lipkit.regions import Box, Everywhere, Region
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import Node, Pointwise
from lipkit.trace.nodes.attention.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.nodes.window_maxima import WindowMax


@final
@dataclass(frozen=True, eq=False)
class Curvature:
    """Which entries of a value are proven convex, and which concave, in the input; affine ones are both."""

    convex: Bool[Tensor, "..."]
    concave: Bool[Tensor, "..."]

    @property
    def neither(self) -> Bool[Tensor, "..."]:
        """Entries of which nothing is known."""
        return ~(self.convex | self.concave)


@final
@dataclass(frozen=True, eq=False)
class Composition:
    """Everything that the rules of composition prove of values: `into[k]` of z_k, `out[j]` of y_j.

    affine functions are convex and concave;  sums with weights >= 0 keep both, weights <= 0 exchange them;
    f(g) is convex if f is convex, and g is affine, or g is convex and f rises, or g is concave and f falls
    (on the range of g; the mirror image for concave);
    a maximum, and its smooth version, is convex if every argument is.
    """

    found: MeasuredNetwork
    into: dict[int, Curvature]
    out: dict[int, Curvature]

    @property
    def output(self) -> Curvature:
        """The same for the output of the network."""
        return self.into[self.found.network.sink]

    def obstacle(self, entry: int) -> str:
        """Where the proof for one entry of the output ends: the operation farthest back that loses the property."""
        network = self.found.network
        mask = torch.zeros(network.target, dtype=torch.bool, device=self.found.device)
        mask.view(-1)[entry] = True
        k = network.sink
        while True:
            marks = {j: reached(block.op.T, mask) for j, block in self.found.fused[k].blocks.items()}
            lost = [j for j, mark in marks.items() if bool((mark & self.out[j].neither).any())]
            if not lost:
                break
            k, mask = lost[0], self._inside(lost[0], marks[lost[0]] & self.out[lost[0]].neither)
            if not bool(mask.any()):
                return f"{network.origin(k)}: {network.nodes[k - 1]} is not proven convex or concave there"
        if bool((self.into[k].concave & mask).any()):
            return f"{network.origin(k)}: proven concave, and not affine"
        return f"{network.origin(k)}: adds convex and concave values"

    def _inside(self, j: int, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """The entries of z_j behind the marked ones of y_j of which nothing is known either."""
        neither = self.into[j].neither
        return mask & neither if isinstance(self.found.network.nodes[j - 1], Pointwise) else neither


def composed(found: MeasuredNetwork, zs: list[Reach]) -> Composition:
    """The rules of composition through all rows, with the ranges `zs` of their values. Cost: see `carried`."""
    network = found.network
    whole = torch.ones(network.source, dtype=torch.bool, device=found.device)
    into: dict[int, Curvature] = {}
    out = {0: Curvature(whole, whole)}
    for k, row in found.fused.items():
        into[k] = _row(row, out)
        if k < network.sink:
            out[k] = _through(network.nodes[k - 1], into[k], zs[k - 1])
    return Composition(found, into, out)


def _row(row: Affine, out: dict[int, Curvature]) -> Curvature:
    above = torch.zeros_like(row.shift, dtype=torch.bool)
    below = torch.zeros_like(row.shift, dtype=torch.bool)
    for j, block in row.blocks.items():
        up, down = carried(block.op, ~out[j].convex, ~out[j].concave)
        above, below = above | up, below | down
    return Curvature(~above, ~below)


def _through(node: Node, z: Curvature, reach: Reach) -> Curvature:
    match node:
        case Pointwise():
            return _pointwise(node, z, reach)
        case WindowMax():
            every = z.convex[..., node.windows].all(-1)
            return Curvature(every, torch.zeros_like(every))
        case SoftMaximum():
            every = (z.convex if node.sign > 0 else z.concave)[..., node.windows].all(-1)
            nothing = torch.zeros_like(every)
            return Curvature(every, nothing) if node.sign > 0 else Curvature(nothing, every)
        case LogSumExp():
            every = z.convex.all(-1, keepdim=True)
            return Curvature(every, torch.zeros_like(every))
        case LogSoftmax():
            affine = (z.convex & z.concave).all(-1, keepdim=True).expand(node.target)
            return Curvature(torch.zeros_like(affine), affine)
        case VectorNorm():
            # A norm rises with every entry that is >= 0.
            known = (z.convex & z.concave) | (z.convex & (reach.low >= 0)) | (z.concave & (reach.high <= 0))
            every = known.all(-1, keepdim=True)
            return Curvature(every, torch.zeros_like(every))
        case OrderStatistics():
            length = node.shape[-1]
            places = torch.tensor([rank % length for rank in node.ranks], device=z.convex.device)
            convex, concave = z.convex.all(-1, keepdim=True), z.concave.all(-1, keepdim=True)
            return Curvature(convex & (places == length - 1), concave & (places == 0))
        case _:
            nothing = torch.zeros(node.target, dtype=torch.bool, device=z.convex.device)
            return Curvature(nothing, nothing)


def _pointwise(node: Pointwise, z: Curvature, reach: Reach) -> Curvature:
    if node.is_identity:
        return z
    alpha, beta = node.activation.slopes(reach.low, reach.high)
    under, over = node.activation.bends(reach.low, reach.high)
    flat = (alpha == 0) & (beta == 0)
    rises, falls, affine = alpha >= 0, beta <= 0, z.convex & z.concave
    convex = (under >= 0) & (affine | (z.convex & rises) | (z.concave & falls))
    concave = (over <= 0) & (affine | (z.concave & rises) | (z.convex & falls))
    return Curvature(convex | flat, concave | flat)


def is_convex(
    network: Network,
    region: Region = Everywhere(),
    ranges: Ranges | None = None,
    search: CounterexampleSearch | None = None,
) -> ProofVerdict:
    """Whether every entry of the output is a convex function of the input on `region`.

        f((x + y) / 2) <= (f(x) + f(y)) / 2   for all x, y of the region (a ball, a box, or the whole space).

    Three steps, each for the outputs the one before leaves open: the rules of composition, with the signs of the
    weights and with slopes and curvatures on the ranges of the values; on a bounded region a lower bound of the Hessian
    (pointwise nodes only, small networks); and a search for a segment on which the inequality fails. For concavity ask
    about `network.then(op)` with a negative operator.

    Guarantee: PROVEN holds for the function of real arithmetic. DISPROVEN comes with x, (x + y) / 2, y of the region,
    at which interval arithmetic proves the violation. UNKNOWN names the operation at which the proof by composition
    ends. Cost: one pass of ranges, then the Hessian (three adjoints for each neuron and each open output), then some
    3000 evaluations of the network.
    Reference: the rules of disciplined convex programming, Grant, Boyd and Ye 2006; Amos et al. 2017 for networks made
    to satisfy them. The bound of the Hessian neuron by neuron is ours.
    """
    require_finite(network)
    found = measure_network(network)
    with torch.no_grad():
        zs = reaches(found, ranges)(region)
        composition = composed(found, zs)
        convex = composition.output.convex.flatten().tolist()
        findings = [Finding(ProofAnswer.PROVEN, "by the rules of composition") if yes else None for yes in convex]
        if not all(findings) and region != Everywhere():
            findings = _by_hessian(found, zs, findings)
        if not all(findings):
            findings = _by_search(found, region, search or CounterexampleSearch(), findings)
        obstacles = (
            Finding(ProofAnswer.UNKNOWN, composition.obstacle(i)) if one is None else one
            for i, one in enumerate(findings)
        )
        return ProofVerdict("convex", region, tuple(obstacles))


def _by_hessian(found: MeasuredNetwork, zs: list[Reach], findings: list[Finding | None]) -> list[Finding | None]:
    try:
        hessian = curved(found, zs)
    except (UnsupportedError, NonFiniteError, TooLargeError):
        # Another kind of node, a slope without bound, or too many entries: this proof is not to be had.
        return findings
    return [one or _proven(hessian, i) for i, one in enumerate(findings)]


def _proven(hessian: Curved, entry: int) -> Finding | None:
    return Finding(ProofAnswer.PROVEN, "by a lower bound of the Hessian") if hessian.convex(entry) else None


def _by_search(
    found: MeasuredNetwork, region: Region, search: CounterexampleSearch, findings: list[Finding | None]
) -> list[Finding | None]:
    """The segment with the largest violation of each open output, if interval arithmetic confirms it."""
    worst: dict[int, tuple[float, Tensor]] = {}
    for lines in search.through(found.network, region):
        values = found.network(lines.flatten(0, 1)).reshape(*lines.shape[:2], -1)
        for points, excess in _violations(lines, values):
            for i, size in enumerate(excess.tolist()):
                if findings[i] is None and size > worst.get(i, (0.0,))[0]:
                    worst[i] = (size, points[i])
    enclosed = Intervals(balls=False).prepare(found.network)

    def confirmed(entry: int) -> Finding | None:
        if entry not in worst:
            return None
        points = worst[entry][1]
        ends = [enclosed(Box(x, x))[-1] for x in points]
        first, last = (float(ends[i].high.flatten()[entry]) for i in (0, 2))
        middle = float(ends[1].low.flatten()[entry])
        # The middle is exact on the grid of the line; one rounding of the mean.
        exact = bool((points[1] - points[0] == points[2] - points[1]).all())
        if exact and middle - (first / 2 + last / 2) > ROUNDINGS_8 * (abs(first) + abs(last)):
            return Finding(ProofAnswer.DISPROVEN, "it lies above a chord: see `witness`", points)
        return None

    return [one or confirmed(i) for i, one in enumerate(findings)]


def _violations(
    lines: Float64[Tensor, "lines points ..."], values: Float64[Tensor, "lines points outputs"]
) -> Iterator[tuple[Float64[Tensor, "outputs 3 ..."], Float64[Tensor, " outputs"]]]:
    """For each distance on the lines, three points in a row for each output, and by how much the middle is too high."""
    step = 1
    while 2 * step < lines.shape[1]:
        excess = values[:, step:-step] - (values[:, : -2 * step] + values[:, 2 * step :]) / 2
        most, place = excess.flatten(0, 1).max(0)
        line, at = place // excess.shape[1], place % excess.shape[1]
        yield torch.stack([lines[line, at + i * step] for i in range(3)], dim=1), most
        step *= 2
