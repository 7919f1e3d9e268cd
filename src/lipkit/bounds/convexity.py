"""Whether a network is convex in its input: a proof, a counter-example, or neither."""

from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds._curvature import composed
from lipkit.bounds._hessian import Curved, curved
from lipkit.bounds._measured import MeasuredNetwork, measured
from lipkit.bounds._segments import Search
from lipkit.bounds._whole_space import reaches, require_finite
from lipkit.bounds.ranges import Intervals, Ranges
from lipkit.bounds.verdict import Answer, Finding, Verdict
from lipkit.errors import NonFiniteError, TooLargeError, UnsupportedError
from lipkit.regions import Box, Everywhere, Region
from lipkit.trace import Network, Reach


def is_convex(
    network: Network, region: Region = Everywhere(), ranges: Ranges | None = None, search: Search | None = None
) -> Verdict:
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
    found = measured(network)
    with torch.no_grad():
        zs = reaches(found, ranges)(region)
        composition = composed(found, zs)
        convex = composition.output.convex.flatten().tolist()
        findings = [Finding(Answer.PROVEN, "by the rules of composition") if yes else None for yes in convex]
        if not all(findings) and region != Everywhere():
            findings = _by_hessian(found, zs, findings)
        if not all(findings):
            findings = _by_search(found, region, search or Search(), findings)
        obstacles = (
            Finding(Answer.UNKNOWN, composition.obstacle(i)) if one is None else one for i, one in enumerate(findings)
        )
        return Verdict("convex", region, tuple(obstacles))


def _by_hessian(found: MeasuredNetwork, zs: list[Reach], findings: list[Finding | None]) -> list[Finding | None]:
    try:
        hessian = curved(found, zs)
    except (UnsupportedError, NonFiniteError, TooLargeError):
        # Another kind of node, a slope without bound, or too many entries: this proof is not to be had.
        return findings
    return [one or _proven(hessian, i) for i, one in enumerate(findings)]


def _proven(hessian: Curved, entry: int) -> Finding | None:
    return Finding(Answer.PROVEN, "by a lower bound of the Hessian") if hessian.convex(entry) else None


def _by_search(
    found: MeasuredNetwork, region: Region, search: Search, findings: list[Finding | None]
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
        if exact and middle - (first / 2 + last / 2) > 2.0**-50 * (abs(first) + abs(last)):
            return Finding(Answer.DISPROVEN, "it lies above a chord: see `witness`", points)
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
