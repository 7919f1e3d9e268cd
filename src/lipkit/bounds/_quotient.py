"""Difference quotients between two points, proven from below."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind, Metric, Of
from lipkit.bounds._points import inside
from lipkit.bounds.relaxation import Relaxation
from lipkit.linops.row_norms import vector_norms
from lipkit.norms._rounding import gamma
from lipkit.regions import Box, Region
from lipkit.trace import Network, Reach

# Of a value that keeps less than this share through the proof, one should not say that it is proven.
KEPT = 0.5
# A proof that keeps this share need not be tried again with other points.
_NEARLY = 1 - 1e-9


@final
@dataclass(frozen=True, eq=False)
class Pair:
    """Two points, and |f(x) - f(y)|_q / |x - y|_p: as float64 gives it, and what is proven of it."""

    x: Float64[Tensor, "..."]
    y: Float64[Tensor, "..."]
    value: float
    proven: float


def quotients(
    network: Network, x: Float64[Tensor, "batch ..."], y: Float64[Tensor, "batch ..."], metric: Metric
) -> Float64[Tensor, " batch"]:
    """|f(x) - f(y)|_q / |x - y|_p for pairs of points, 0 where they coincide; differentiable in both."""
    rise = torch.linalg.vector_norm((network(x) - network(y)).flatten(1), ord=metric.p_out, dim=1)
    run = torch.linalg.vector_norm((x - y).flatten(1), ord=metric.p_in, dim=1)
    return torch.where(run > 0, rise / torch.where(run > 0, run, 1.0), 0.0)


def prover(network: Network, metric: Metric) -> Callable[[Tensor, Tensor], Pair]:
    """What gives the quotient of one pair of points with its rounding errors subtracted.

    f(x) and f(y) are enclosed by carrying intervals, and linear relaxations of the output, from the single points: the
    widths are the rounding errors of float64, multiplied by the network's own derivatives. The difference is at least
    the gap between the intervals, and the distance at most the rounded one plus its error. No derivative is used, so
    kinks do not matter. Cost of a pair: ten applications of every operator, and adjoints for the outputs.
    """
    cheap = Relaxation(balls=False, limit=256, hidden=False).prepare(network)
    # In deep networks intervals amplify rounding errors more than the network does; norms do so less, and cost more.
    careful = Relaxation(balls=True, limit=256, hidden=False).prepare(network)
    frozen = network.detach()

    def proven(x: Tensor, y: Tensor) -> Pair:
        value = float(quotients(frozen, x[None], y[None], metric))
        found = _from_below(cheap, x, y, metric)
        if found < KEPT * value:
            found = max(found, _from_below(careful, x, y, metric))
        return Pair(x, y, value, found)

    return proven


def _from_below(find: Callable[[Region], list[Reach]], x: Tensor, y: Tensor, metric: Metric) -> float:
    at_x, at_y = find(Box(x, x))[-1], find(Box(y, y))[-1]
    gap = torch.maximum(at_x.low - at_y.high, at_y.low - at_x.high).clamp(min=0).flatten() * (1 - 2.0**-50)
    rise = torch.linalg.vector_norm(gap, ord=metric.p_out) * (1 - gamma(8 * len(gap) + 64))
    # Each entry of x - y is rounded once.
    run = vector_norms((x - y).flatten()[None], metric.p_in)[0] * (1 + 2.0**-50)
    found = float(rise / run) * (1 - 2.0**-50) if bool(run > 0) else 0.0
    return found if math.isfinite(found) else 0.0


def best_pair(
    network: Network, region: Region, x: Float64[Tensor, "batch ..."], y: Float64[Tensor, "batch ..."],
    prove: Callable[[Tensor, Tensor], Pair], metric: Metric,
) -> Pair:  # fmt: skip
    """The proven pair of the largest quotients, of those given, moved into the region; at most four are tried."""
    x, y = inside(region, x), inside(region, y)
    with torch.no_grad():
        found = quotients(network, x, y, metric)
        # Points that are too near each other show the rounding of f instead of f; a guess of it decides the order.
        noise = 2.0**-44 * network(x).flatten(1).abs().amax(1)
        run = torch.linalg.vector_norm((x - y).flatten(1), ord=metric.p_in, dim=1)
        found = found - noise / run.clamp(min=1e-300)
    order = torch.where(torch.isfinite(found), found, -math.inf).argsort(descending=True)[:4].tolist()
    best = prove(x[order[0]], y[order[0]])
    for i in order[1:]:
        if best.proven >= _NEARLY * best.value:
            break
        pair = prove(x[i], y[i])
        best = pair if pair.proven > best.proven else best
    return best


def along(
    x: Float64[Tensor, "batch ..."], direction: Float64[Tensor, "batch ..."], scale: float
) -> tuple[Float64[Tensor, "pairs ..."], Float64[Tensor, "pairs ..."]]:
    """Pairs of points near x on the line in `direction`, from far apart to as near as float64 lets one see."""
    first: list[Tensor] = []
    second: list[Tensor] = []
    for power in range(8):
        step = direction * (scale * 10.0**-power)
        # Centered, and to either side: at the border of the region one of them stays inside.
        first += [x - step / 2, x, x - step]
        second += [x + step / 2, x + step, x]
    return torch.cat(first), torch.cat(second)


def lower_bound(pairs: list[Pair], region: Region, metric: Metric, method: object, of: Of) -> Bound:
    """The bound that pairs of points give, one for each sample; they are kept as its `state`.

    LOWER where the proofs keep half of every value, otherwise an ESTIMATE: the network is then so deep or so badly
    scaled that float64 proves nothing of it.
    """
    sure = all(pair.proven >= KEPT * pair.value for pair in pairs)
    kind = Kind.LOWER if sure else Kind.ESTIMATE
    values = torch.tensor([pair.proven if sure else pair.value for pair in pairs], dtype=torch.float64)
    points = torch.stack([torch.stack([pair.x, pair.y]) for pair in pairs])
    whole = of is Of.WHOLE
    value = values[0] if whole else values
    bound = Bound.from_value(value, kind, method, metric, of)
    return replace(bound, region=region, state=points[0] if whole else points)
