"""Points of a region, and difference quotients between two of them, proven from below."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import final

import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._runtime import seconds_left
from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds.local.ranges import intervals_of
from lipkit.bounds.local.relaxation import functional
from lipkit.errors import ArgumentError, OutOfTimeError
from lipkit.linops import Shape
from lipkit.norms import dual_exponent
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.rounding.float64 import vector_norms
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_512
from lipkit.trace import Network

# If a proof keeps less than this share of a value, the value is reported as an estimate.
KEPT = 0.5
# A proof that keeps this share need not be tried again with other points.
_NEARLY = 1 - 1e-9
# Scales, as powers of ten, that points of the whole space are drawn at.
_SCALES = (-2.0, 2.0)
# How much shorter than the radius a point that rounding left outside is made, in turn.
_SHRINKS = (0.0, 2.0**-40, 2.0**-20, 2.0**-10)


def draw_points(region: Region, shape: Shape, count: int, generator: torch.Generator) -> Float64[Tensor, "count ..."]:
    """`count` points of the region on the generator's device, uniform; on the whole space Gaussian at scales from 0.01
    to 100, evenly in the logarithm."""
    full = (count, *shape)
    match region:
        case Ball(center, radius, p):
            return move_inside(region, center.detach().to(generator.device) + radius * _unit_ball(full, p, generator))
        case Box(low, high):
            low, high = low.detach().to(generator.device), high.detach().to(generator.device)
            uniform = torch.rand(full, dtype=torch.float64, device=generator.device, generator=generator)
            return move_inside(region, low + uniform * (high.double() - low))
        case Everywhere():
            scales = torch.rand(count, dtype=torch.float64, device=generator.device, generator=generator)
            scales = 10 ** (_SCALES[0] + (_SCALES[1] - _SCALES[0]) * scales)
            return scales.reshape(-1, *(1,) * len(shape)) * _normal(full, generator)
        case _:
            raise ArgumentError(f"Points are drawn from a Ball, a Box or Everywhere, got {region}.")


def _unit_ball(shape: tuple[int, ...], p: float, generator: torch.Generator) -> Tensor:
    """Uniform in the unit ball of l_p: a vector of density exp(-|x|_p^p) over (|x|_p^p + exponential)^(1/p)."""
    uniform = torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)
    if p == math.inf:
        return 2 * uniform - 1
    if p == 2:
        x = _normal(shape, generator) / math.sqrt(2)
    else:
        # |x|^p has a gamma distribution; torch draws it from the global generator, so from exact quantiles instead.
        size = torch.from_numpy(scipy.special.gammaincinv(1 / p, uniform.numpy(force=True))).to(uniform)
        sign = torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator) - 0.5
        x = size ** (1 / p) * sign.sign()
    more = torch.rand(shape[0], dtype=torch.float64, device=generator.device, generator=generator)
    total = (x.abs() ** p).flatten(1).sum(1) - torch.log1p(-more)
    return x / total.reshape(-1, *(1,) * (len(shape) - 1)) ** (1 / p)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=generator.device, generator=generator)


def move_inside(region: Region, points: Float64[Tensor, "count ..."]) -> Float64[Tensor, "count ..."]:
    """The points, each moved into the region if it lies outside; toward the center of a ball, entry by entry in a box.

    Rounding included: what is returned satisfies the inequality of the region in real arithmetic, or is its center.
    """
    match region:
        case Box(low, high):
            low, high = (end.detach().to(points) for end in (low, high))
            return torch.minimum(torch.maximum(points, low), high)
        case Ball(center, radius, p):
            center = center.detach().to(points)
            for shrink in _SHRINKS:
                length = _distance(points, center, p)
                factor = (radius * (1 - shrink) / length.clamp(min=1e-300)).clamp(max=1.0)
                outside = length > radius
                if not bool(outside.any()):
                    return points
                moved = center + (points - center) * _tail(factor, points)
                points = torch.where(_tail(outside, points), moved, points)
            return torch.where(_tail(_distance(points, center, p) > radius, points), center, points)
        case _:
            return points


def _distance(points: Tensor, center: Tensor, p: float) -> Tensor:
    # The difference of two floating-point numbers is rounded once.
    return vector_norms((points - center).flatten(1), p) * (1 + ROUNDINGS_8)


def _tail(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.ndim - 1))


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
    """A function that gives the quotient of two points with its rounding errors subtracted.

    |f(x) - f(y)|_q >= <v, f(x) - f(y)> / |v|_q' for every v, with equality at the one taken (1/q + 1/q' = 1). Both
    products are enclosed by intervals that start at the points, and where those become wide by a linear relaxation of
    <v, f>: the widths are the rounding errors of float64, multiplied by the network's own derivatives. The distance is
    at most the rounded one plus its error. No derivative is used, so kinks do not matter. Cost of a pair: ten
    applications of every operator; with the relaxation three times that, and eight adjoints.
    """

    # In deep networks intervals amplify rounding errors more than the network does; a relaxation does so less, norms
    # less again, and both cost more.
    @cache
    def enclosure(way: int) -> Callable[[Region, Tensor], tuple[float, float]]:
        return functional(network, balls=way == 2) if way else intervals_of(network)

    frozen = network.detach()

    def proven(x: Tensor, y: Tensor) -> Pair:
        with torch.no_grad():
            rise = frozen(x[None])[0] - frozen(y[None])[0]
        value = float(quotients(frozen, x[None], y[None], metric))
        if not math.isfinite(value):
            # An overflow says nothing of the function.
            return Pair(x, y, 0.0, 0.0)
        direction = _align(rise, metric.p_out)
        found = 0.0
        for way, enough in enumerate((_NEARLY, KEPT, math.inf)):
            try:
                found = max(found, _from_below(enclosure(way), x, y, direction, metric))
            except OutOfTimeError:
                break
            if found >= enough * value or seconds_left() <= 0:
                break
        return Pair(x, y, value, found)

    return proven


def _align(rise: Tensor, p: float) -> Tensor:
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
    x, y = move_inside(region, x), move_inside(region, y)
    with torch.no_grad():
        found = quotients(network, x, y, metric)
        # Points that are too near each other show the rounding of f instead of f; a guess of it decides the order.
        noise = ROUNDINGS_512 * network(x).flatten(1).abs().amax(1)
        run = torch.linalg.vector_norm((x - y).flatten(1), ord=metric.p_in, dim=1)
        found = found - noise / run.clamp(min=1e-300)
    order = torch.where(torch.isfinite(found), found, -math.inf).argsort(descending=True)[:4].tolist()
    best = prove(x[order[0]], y[order[0]])
    for i in order[1:]:
        if best.proven >= _NEARLY * best.value or seconds_left() <= 0:
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


def lower_bound(pairs: list[Pair], region: Region, metric: Metric, method: object, of: Scope) -> Bound:
    """The bound that pairs of points give, one for each sample; they are kept as its `state`.

    LOWER where the proofs keep half of every value, otherwise an ESTIMATE: the network is then so deep or so badly
    scaled that float64 proves nothing of it.
    """
    sure = all(pair.proven >= KEPT * pair.value for pair in pairs)
    kind = Kind.LOWER if sure else Kind.ESTIMATE
    values = torch.tensor([pair.proven if sure else pair.value for pair in pairs], dtype=torch.float64)
    points = torch.stack([torch.stack([pair.x, pair.y]) for pair in pairs])
    whole = of is Scope.WHOLE
    value = values[0] if whole else values
    bound = Bound.from_value(value, kind, method, metric, of)
    return replace(bound, region=region, state=points[0] if whole else points)
