"""Difference quotients between two points, proven from below."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind, Metric, Of
from lipkit.bounds.local.relaxation import functional
from lipkit.bounds.lower.region_points import inside
from lipkit.linops.queries.row_norms import vector_norms
from lipkit.norms import dual_exponent
from lipkit.regions import Box, Region
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_512
from lipkit.trace import Network

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

    |f(x) - f(y)|_q >= <v, f(x) - f(y)> / |v|_q' for every v, with equality at the one taken (1/q + 1/q' = 1). Both
    products are enclosed by carrying intervals, and a linear relaxation of <v, f>, from the single points: the widths
    are the rounding errors of float64, multiplied by the network's own derivatives. The distance is at most the rounded
    one plus its error. No derivative is used, so kinks do not matter. Cost of a pair: ten applications of every
    operator, and four adjoints.
    """
    # In deep networks intervals amplify rounding errors more than the network does; norms do so less, and cost more.
    cheap, careful = (functional(network, balls) for balls in (False, True))
    frozen = network.detach()

    def proven(x: Tensor, y: Tensor) -> Pair:
        with torch.no_grad():
            rise = frozen(x[None])[0] - frozen(y[None])[0]
        value = float(quotients(frozen, x[None], y[None], metric))
        direction = _aligned(rise, metric.p_out)
        found = _from_below(cheap, x, y, direction, metric)
        if found < KEPT * value:
            found = max(found, _from_below(careful, x, y, direction, metric))
        return Pair(x, y, value, found)

    return proven


def _aligned(rise: Tensor, p: float) -> Tensor:
    """v with <v, rise> = |v|_q |rise|_p, 1/p + 1/q = 1, up to rounding."""
    size = rise.abs().max()
    if not bool(size > 0) or not bool(torch.isfinite(size)):
        return torch.zeros_like(rise)
    if math.isinf(p):
        return torch.where(rise.abs() == size, rise.sign(), 0.0)
    return rise.sign() * (rise.abs() / size) ** (p - 1)


def _from_below(
    find: Callable[[Region, Tensor], tuple[float, float]], x: Tensor, y: Tensor, direction: Tensor, metric: Metric
) -> float:
    low, _ = find(Box(x, x), direction)
    _, high = find(Box(y, y), direction)
    gap = max(low - high, 0.0) * (1 - ROUNDINGS_8)
    across = vector_norms(direction.flatten()[None], dual_exponent(metric.p_out))[0] * (1 + ROUNDINGS_8)
    # Each entry of x - y is rounded once.
    run = vector_norms((x - y).flatten()[None], metric.p_in)[0] * (1 + ROUNDINGS_8)
    whole = float(across * run) * (1 + ROUNDINGS_8)
    found = gap / whole * (1 - ROUNDINGS_8) if whole > 0 else 0.0
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
        noise = ROUNDINGS_512 * network(x).flatten(1).abs().amax(1)
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
