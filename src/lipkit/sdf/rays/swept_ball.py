"""Balls that move along a path without touching a surface."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.rounding.float64 import norm_up, round_down, round_up
from lipkit.sdf._base import Field, Readings, check_points, constant_of
from lipkit.sdf.given_numbers import as_number, as_whole
from lipkit.sdf.rays.clearance import ProvenDeviation, upper_of
from lipkit.sdf.rays.march import Rays, march

# Squares of shorter edges are no normal numbers.
_SHORTEST = 1e-150


@final
@dataclass(frozen=True)
class Swept:
    """Whether the whole way is proven free, and the length from its start that is."""

    free: bool
    until: float


def sweep(
    f: Field,
    path: Float[Tensor, "points d"],
    radius: float,
    deviation: ProvenDeviation | None = None,
    tolerance: float | None = None,
    most: int = 1000,
) -> Swept:
    """How far a ball can move along a polyline outside of a shape before it may touch it.

    The center is free where g(x) = -f(x) - K radius - sup |f| over the surface is positive. All edges are traced at
    once, as rays that end where g is zero.

    Guarantee: on the first `until` units of length of the path the open ball of this radius, at every position, has no
    zero of f, and f < 0 in it; with a deviation no point of the surface. Rounding is counted. `until` may fall
    short of the true length where edges are blocked by less than the tolerance.
    Cost: one value of f for each step of each edge.

    Args:
        f: A field, negative outside.
        path: Corners of the polyline.
        radius: The radius of the ball.
        deviation: From `sdf.deviation` of this field, if the ball should avoid the mesh and not the zero set of f.
        tolerance: An edge counts as blocked where less than this is left, a length; a millionth of the longest edge if
            it is left out.
        most: The largest number of values for one edge.
    """
    constant, upper, radius = constant_of(f), upper_of(deviation, f), as_number(radius, "radius")
    if not 0 <= radius < math.inf:
        raise ArgumentError(f"A ball has a finite radius >= 0, got {radius}.")
    corners = check_points(path, f.dim).detach()
    edges = corners.diff(dim=0)
    moving = edges.abs().amax(1) > 0 if len(edges) else torch.zeros(0, dtype=torch.bool)
    if not bool(moving.any()):
        raise ArgumentError(
            f"A path has two different corners or more, got {len(corners)}; use `clearance` for points."
        )
    starts, edges = corners[:-1][moving], edges[moving]
    lengths = norm_up(edges, 1)
    shortest, longest = float(lengths.min()), float(lengths.max())
    if not _SHORTEST < shortest <= longest < math.inf:
        raise ArgumentError(
            f"Edges of a path have lengths whose squares float64 holds, from {_SHORTEST} to 1e154, got {shortest:.3g} "
            f"to {longest:.3g}; merge corners that are nearly the same, or scale the path and the field."
        )
    tolerance = 1e-6 * longest if tolerance is None else as_number(tolerance, "tolerance")
    if as_whole(most, "most") < 1:
        raise ArgumentError(f"An edge takes at least one value, got most={most}.")
    if not 0 < tolerance < math.inf:
        raise ArgumentError(f"A tolerance is a length > 0, got {tolerance}.")
    # One number up, for the product may be rounded to zero.
    taken = math.nextafter(float(round_up(torch.tensor(constant * radius + upper, dtype=torch.float64), 3)), math.inf)

    def sizes(points: Float64[Tensor, "n d"]) -> Readings:
        found = f.measure(points)
        # Where g <= 0 nothing is known: the size is negative, and proves no interval.
        return Readings(-found.value - taken, found.error)

    with torch.no_grad():
        found = march(sizes, constant, Rays.of(starts, edges), lengths, tolerance, most)
    blocked = (found.distance < lengths).nonzero().flatten()
    passed = lengths if not len(blocked) else found.distance[: int(blocked[0]) + 1]
    until = float(round_down(passed, len(edges) + f.dim + 8).sum())
    return Swept(len(blocked) == 0, until)
