"""Lower bounds from random points, and how the local steepness is distributed."""

import math
from dataclasses import dataclass
from time import monotonic
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit._deadline import seconds_left, time_limit
from lipkit.bound import L2, Bound, Metric, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.lower.difference_quotients import (
    Pair,
    along,
    best_pair,
    draw_points,
    lower_bound,
    move_inside,
    prover,
)
from lipkit.bounds.lower.point_jacobians import steepest
from lipkit.errors import ArgumentError
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.trace import Network


@final
@dataclass(frozen=True, eq=False)
class Sampling(RegionMethod):
    """The largest Jacobian norm at random points, turned into two points whose difference quotient proves it.

        Lip(f) >= |f(x) - f(y)|_q / |x - y|_p - rounding,   x and y in the region, on the line through the steepest of
        `count` points, in the direction of the largest singular value there, at several distances.

    `points`, if given, are tried as well: data on which the network is used. On the whole space points are drawn at
    scales from 0.01 to 100 around zero. The two points are the bound's `state`. A region with a batch of centers gives
    a value for each of them.

    Guarantee: LOWER, from the function alone, so also at kinks, where a Jacobian of autograd may be no derivative at
    all. ESTIMATE where the rounding errors of float64 exceed half of the value. Where a call has a budget, fewer points
    are tried. Cost: one backward pass for each
    output, for `count` points in batches; then a few enclosures of the function at single points.
    """

    count: int = 1024
    metric: Metric = L2
    points: Float[Tensor, "given ..."] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ArgumentError(f"Sampling needs at least one point, got count={self.count}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        samples, of = regions_of(region, network)
        prove = prover(network, self.metric)
        pairs: list[Pair] = []
        for one in samples:
            x = self._draw(network, one)
            # The other half of the time is for the proof.
            with time_limit(seconds_left() / 2):
                norms, directions = _steepest_in_time(network, x, self.metric)
            top = norms.argsort(descending=True)[:4]
            first, second = along(x[top], directions[top], scale_of(one, x[top]))
            pairs.append(best_pair(network, one, first, second, prove, self.metric))
        return lower_bound(pairs, region, self.metric, self, of)

    def norms(self, network: Network, region: Region = Everywhere()) -> Float64[Tensor, "..."]:
        """The Jacobian norms at the points themselves (estimates), for `profile`; with an axis in front for a batch."""
        samples, of = regions_of(region, network)
        found = [steepest(network, self._draw(network, one), self.metric)[0] for one in samples]
        return found[0] if of is Scope.WHOLE else torch.stack(found)

    def _draw(self, network: Network, region: Region) -> Tensor:
        generator = torch.Generator(network.device).manual_seed(self.seed)
        x = draw_points(region, network.source, self.count, generator)
        if self.points is None:
            return x
        return torch.cat([move_inside(region, self.points.detach().to(x)), x])

    def __str__(self) -> str:
        return f"steepest of {self.count} points"


@final
@dataclass(frozen=True, eq=False)
class Profile:
    """How numbers are distributed: estimates of a typical constant, not bounds of the constant."""

    mean: float
    deviation: float
    levels: tuple[float, ...]
    quantiles: tuple[float, ...]
    largest: float

    def __str__(self) -> str:
        shown = ", ".join(f"{100 * p:g}% {q:.5g}" for p, q in zip(self.levels, self.quantiles, strict=True))
        return f"mean {self.mean:.5g} (deviation {self.deviation:.3g}), {shown}, largest {self.largest:.5g} (estimates)"


def profile(values: Bound | Float64[Tensor, "..."], levels: tuple[float, ...] = (0.05, 0.5, 0.95)) -> Profile:
    """Mean, deviation, quantiles and maximum of a bound for each sample, or of the Jacobian norms at points.

    The mean over data of a local lower bound is the empirical local Lipschitz constant of Yang et al. 2020.
    """
    numbers = (values.value if isinstance(values, Bound) else values).detach().flatten()
    if not len(numbers) or not all(0 <= level <= 1 for level in levels):
        raise ArgumentError(f"profile needs some numbers and levels in [0, 1], got {len(numbers)} and {levels}.")
    at = torch.tensor(levels, dtype=torch.float64, device=numbers.device)
    return Profile(
        float(numbers.mean()),
        float(numbers.std(correction=0)),
        levels,
        tuple(torch.quantile(numbers, at).tolist()),
        float(numbers.max()),
    )


def regions_of(region: Region, network: Network) -> tuple[list[Region], Scope]:
    """The regions to search, and what the values then range over."""
    if isinstance(region, Everywhere):
        return [region], Scope.WHOLE
    samples = each_sample(region, network.source)
    return ([region], Scope.WHOLE) if samples is None else (samples, Scope.SAMPLE)


def scale_of(region: Region, x: Float64[Tensor, "batch ..."]) -> float:
    """A length that is natural in the region: its radius, its widest side, or the size of the points."""
    match region:
        case Ball(radius=radius):
            return radius
        case Box(low, high):
            return float((high - low).max()) / 2
        case _:
            return float(torch.linalg.vector_norm(x.flatten(1), dim=1).median()) * 0.1


def _steepest_in_time(network: Network, x: Tensor, metric: Metric) -> tuple[Tensor, Tensor]:
    """As `steepest`, for as many of the points as there is time for, but at least one."""
    if seconds_left() == math.inf:
        return steepest(network, x, metric)
    parts: list[tuple[Tensor, Tensor]] = []
    done, count = 0, 1
    while done < len(x):
        begun = monotonic()
        parts.append(steepest(network, x[done : done + count], metric))
        done, each = done + count, (monotonic() - begun) / count
        # No more than half of the time left at once: the next points may take longer than these did.
        count = min(2 * count, int(seconds_left() / (2 * each)))
        if count < 1:
            break
    return torch.cat([norm for norm, _ in parts]), torch.cat([direction for _, direction in parts])
