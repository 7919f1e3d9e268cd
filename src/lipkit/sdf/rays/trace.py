"""Rays that meet the zero set of a field, and are proven to meet nothing before."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.sdf._base import Field, Readings, check_points, constant_of
from lipkit.sdf.given_numbers import as_number, as_whole
from lipkit.sdf.rays.march import Rays, march

# Where signs are read behind a hit, in tolerances; where slopes are small a zero is farther behind.
_BEHIND = (2.0, 8.0, 32.0)
# A ray ends this close to a surface, as a share of the longest way.
_CLOSE = 1e-6


@final
@dataclass(frozen=True, eq=False)
class Traced:
    """Where rays end. For all of them f has no zero before `distance`, in units of length from the origin.

    `hit`: |f| <= 2 K tolerance there, so a zero may be near: |f| <= K tolerance where its last value was taken, and the
    ray goes on to the end of what that value proves free. `crossed`: a hit, and f is proven to have
    the other sign behind, within 32 tolerances, so there is a zero. `stalled`: neither a hit nor at `far`, because
    rounding errors exceed the tolerance or the ray took all its steps. `steps`: values that a ray took.
    """

    hit: Bool[Tensor, " n"]
    crossed: Bool[Tensor, " n"]
    stalled: Bool[Tensor, " n"]
    distance: Float64[Tensor, " n"]
    steps: Int[Tensor, " n"]


def trace(
    f: Field,
    origins: Float[Tensor, "n d"],
    directions: Float[Tensor, "directions d"],
    far: float,
    tolerance: float | None = None,
    most: int = 1000,
) -> Traced:
    """The way of each ray origin + t direction/|direction| until it meets the zero set of f, from outside or inside.

    A value of f proves an interval of the ray free, and steps are chosen so that these intervals overlap (`march`).

    Guarantee: f has no zero at any t in [0, distance), in real arithmetic, for the origins and directions as stored;
    the rounding of f, of the points, of the directions' lengths and of t is counted. A hit may be a near miss;
    `crossed` proves that there is a zero.
    Cost: one value of f for each step of each ray; rays that ended cost nothing.
    Reference: Hart 1996 for sphere tracing, Keinert et al. 2014 for overlapping steps, Bálint and Valasek 2018 for
    steps that expect the rate of the last one; the proof with rounding is ours.

    Args:
        f: A field.
        origins: Where rays start.
        directions: Where they go, of any length but zero.
        far: Where they end.
        tolerance: A length: a ray ends where |f| is at most K times this; a millionth of `far` if it is left out.
        most: The largest number of values for one ray.
    """
    constant = constant_of(f)
    far = as_number(far, "far")
    if not 0 < far < math.inf:
        raise ArgumentError(f"Rays end at a finite distance far > 0, got {far}.")
    tolerance = _CLOSE * far if tolerance is None else as_number(tolerance, "tolerance")
    if not 0 < tolerance < far:
        raise ArgumentError(f"A tolerance is a length between 0 and far = {far}, got {tolerance}.")
    if as_whole(most, "most") < 1:
        raise ArgumentError(f"A ray takes at least one value, got most={most}.")
    start, along = check_points(origins, f.dim).detach(), check_points(directions, f.dim).detach()
    if start.shape != along.shape:
        raise ShapeError(f"Each ray has an origin and a direction, got {len(start)} and {len(along)}; expand them.")
    rays = Rays.of(start, along)

    def sizes(points: Float64[Tensor, "n d"]) -> Readings:
        found = f.measure(points)
        return Readings(found.value.abs(), found.error)

    with torch.no_grad():
        found = march(sizes, constant, rays, start.new_full((len(start),), far), tolerance, most)
        crossed = torch.zeros_like(found.near)
        hits = found.near.nonzero().squeeze(1)
        crossed[hits] = _crosses(f, rays.select(hits), found.distance[hits], tolerance)
    stalled = ~found.near & (found.distance < far)
    return Traced(found.near, crossed, stalled, found.distance, found.steps)


def _crosses(f: Field, rays: Rays, distance: Float64[Tensor, " n"], tolerance: float) -> Bool[Tensor, " n"]:
    """Where f at the origin and behind the end have proven, different signs."""
    before = _signs(f, rays, torch.zeros_like(distance))
    found = torch.zeros_like(before, dtype=torch.bool)
    for factor in _BEHIND:
        found |= before * _signs(f, rays, distance + factor * tolerance) < 0
    return found


def _signs(f: Field, rays: Rays, t: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """Signs of f on the rays, 0 where rounding errors hide them."""
    found = f.measure(rays.at(t))
    # The computed point is not on the ray, but so near that the sign is the same.
    unsure = (found.error + constant_of(f) * rays.drifts(t)) * 2
    return found.value.sign() * (found.value.abs() > unsure)
