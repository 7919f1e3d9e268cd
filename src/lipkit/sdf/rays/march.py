"""Many rays at once, each as far as values of a Lipschitz function prove that it has no zero."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.rounding.float64 import gamma, inverse_scale, norm_up
from lipkit.rounding.slacks import ROUNDINGS_8, ULP
from lipkit.sdf._base import Readings
from lipkit.sdf.rays.free_radius import free_radius

# Rays that march together: few are left at the end of a march, so it should be a march of many.
_RAYS = 2**20
# Points whose values are taken together: a network has tensors of hundreds of numbers for each.
_POINTS_ON_CPU, _POINTS_ON_GPU = 2**15, 2**18
# Directions below are not told from zero.
_SHORTEST = 1e-300
# How far a step goes of what would just be proven on a plane, and the steepest way out that is believed.
_EAGER, _STEEPEST = 0.95, 0.9


@final
@dataclass(frozen=True, eq=False)
class Marched:
    """How far each ray is free, how many values that took, and whether the size fell to the tolerance at its end."""

    distance: Float64[Tensor, " n"]
    steps: Int[Tensor, " n"]
    near: Bool[Tensor, " n"]


@final
@dataclass(frozen=True, eq=False)
class Rays:
    """Points origin + t direction/|direction|, t >= 0; `unit` is the direction as rounded.

    A computed point is within `drift` (|origin| + t) of the true one: a unit vector carries the roundings of a length,
    of a division and of a difference that a direction may come from; a point carries two more.
    """

    origin: Float64[Tensor, "n d"]
    unit: Float64[Tensor, "n d"]
    offset: Float64[Tensor, " n"]
    drift: float

    @classmethod
    def of(cls, origins: Float64[Tensor, "n d"], directions: Float64[Tensor, "n d"]) -> "Rays":
        """Rays, if no direction is zero."""
        largest = directions.abs().amax(1, keepdim=True)
        short = int((largest < _SHORTEST).sum())
        if short:
            raise ArgumentError(
                f"{short} of {len(directions)} directions are zero, or shorter than {_SHORTEST}, and lead nowhere; "
                "leave out these rays."
            )
        # In units near one, squares neither overflow nor vanish.
        scaled = directions * inverse_scale(largest)
        unit = scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        return cls(origins, unit, norm_up(origins, 1), gamma(origins.shape[1] + 32))

    def at(self, t: Float64[Tensor, " n"]) -> Float64[Tensor, "n d"]:
        """The points at these lengths."""
        return torch.addcmul(self.origin, t[:, None], self.unit)

    def drifts(self, t: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        """How far computed points may be from the true ones."""
        return (self.offset + t) * self.drift

    def select(self, which: Tensor | slice) -> "Rays":
        """Some of the rays."""
        return Rays(self.origin[which], self.unit[which], self.offset[which], self.drift)


def march(
    sizes: Callable[[Float64[Tensor, "n d"]], Readings],
    constant: float,
    rays: Rays,
    far: Float64[Tensor, " n"],
    tolerance: float,
    most: int,
) -> Marched:
    """For each ray a length below which the function behind `sizes` has no zero, at most `far`.

    A value of size s, to within e, at length t proves the interval (t - r, t + r) free, r = (s - e)/K - drift. A step
    goes to where the next interval would just touch if the size changed at the rate c of the last step,

        t' = t + 2 r/(1 - c),   c between -1 and 0.9,

    and counts only if the two intervals do overlap; else the ray goes back to t + r. So convex shapes are passed with
    about half of the usual steps, and nothing is believed.

    Args:
        sizes: |f| of a function with the constant, and how far each is from the truth; negative for "nothing is known".
        far: Where each ray ends.
        tolerance: A ray ends where the size is at most K times this.
        most: How many values a ray may take.
    """
    n, device = len(far), far.device
    found = Marched(
        torch.zeros_like(far),
        torch.zeros(n, dtype=torch.int64, device=device),
        torch.zeros(n, dtype=torch.bool, device=device),
    )
    for start in range(0, n, _RAYS):
        part = slice(start, start + _RAYS)
        _march(sizes, constant, rays.select(part), far[part], tolerance, most, _part(found, part))
    return found


def _part(found: Marched, part: slice) -> Marched:
    return Marched(found.distance[part], found.steps[part], found.near[part])


def _march(
    sizes: Callable[[Float64[Tensor, "n d"]], Readings],
    constant: float,
    rays: Rays,
    far: Float64[Tensor, " n"],
    tolerance: float,
    most: int,
    out: Marched,
) -> None:
    """March some rays and write what was found into `out`."""
    index = torch.arange(len(far), device=far.device)
    # The ray is free on [0, safe); the next value is taken at t; the last one that counted was `size`, at `last`.
    safe, t, last, size = (torch.zeros_like(far) for _ in range(4))
    for step in range(1, most + 1):
        now = _in_pieces(sizes, rays.at(t))
        free = free_radius(now.value, now.error, constant) - rays.drifts(t) * (1 + ROUNDINGS_8)
        free = (free * (1 - ROUNDINGS_8)).clamp(min=0.0)
        counts = (t <= safe) | (t * (1 + 4 * ULP) - free < safe)
        # One number down from the rounded sum is below the true sum.
        reached = torch.maximum(safe, torch.nextafter(t + free, torch.zeros_like(t)))
        ahead = torch.where(counts, reached, safe)
        near = counts & (now.value <= constant * tolerance)
        stuck = counts & (ahead <= safe) & (t <= safe)
        done = near | stuck | (ahead >= far)
        rate = ((now.value - size) / (constant * (t - last))).nan_to_num(-1.0, -1.0, -1.0).clamp(-1.0, _STEEPEST)
        eager = t + free * (1 + _EAGER * (1 + rate) / (1 - rate))
        size, last = torch.where(counts, now.value, size), torch.where(counts, t, last)
        t = torch.where(counts, torch.maximum(eager, ahead), safe).minimum(far)
        safe = ahead
        if step == most:
            done = torch.ones_like(done)
        if bool(done.any()):
            gone = index[done]
            out.distance[gone] = torch.minimum(safe, far)[done]
            out.steps[gone] = step
            out.near[gone] = near[done]
            left = (~done).nonzero().squeeze(1)
            index, far, safe, t, last, size = (one[left] for one in (index, far, safe, t, last, size))
            rays = rays.select(left)
            if len(index) == 0:
                return


def _in_pieces(sizes: Callable[[Float64[Tensor, "n d"]], Readings], points: Float64[Tensor, "n d"]) -> Readings:
    found = [sizes(piece) for piece in points.split(_POINTS_ON_CPU if points.device.type == "cpu" else _POINTS_ON_GPU)]
    return Readings(torch.cat([one.value for one in found]), torch.cat([one.error for one in found]))
