"""How large a field becomes on a surface of triangles, enclosed by subdivision."""

import math
from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.rounding.float64 import norm_up
from lipkit.rounding.slacks import ROUNDINGS_16
from lipkit.sdf._base import Field, constant_of
from lipkit.sdf.given_numbers import as_number, as_whole
from lipkit.sdf.meshes.mesh_field import Mesh
from lipkit.sdf.meshes.pieces import halve
from lipkit.sdf.meshes.triangles import Triangles

_AT_ONCE: Final = 2**14
# Corners of pieces are rounded once for each halving. Three halvings bring the longest edge to half its length, so
# after 150 of them a piece is smaller than this share of its coordinates, and is not cut any more.
_ROUNDED_CORNERS: Final = 2.0**-44


@final
@dataclass(frozen=True)
class Deviation:
    """lower <= sup of |f| over a surface <= upper; proven, rounding included.

    Args:
        lower: The largest |f| at a point of the surface, minus its error.
        upper: No point of the surface has a larger |f|.
        tolerance: How far apart the two were asked to be.
        evaluations: At how many points the field was evaluated.

    Attributes:
        of: The field; None for one that was read from a file or written down, which somebody states.
    """

    lower: float
    upper: float
    tolerance: float
    evaluations: int
    of: Field | None = field(init=False, default=None, repr=False, compare=False)

    @property
    def reached(self) -> bool:
        """Whether the two ends came as close as they were asked to."""
        return self.upper - self.lower <= self.tolerance


def deviation(f: Field, mesh: Mesh | Triangles, tolerance: float, evaluations: int = 2_000_000) -> Deviation:
    """The largest |f| on a surface, between two proven ends.

    A piece of the surface within r of a point c has |f| <= |f(c)| + K r on it. The pieces with the largest such bound
    are halved first, until no bound is above the largest value found plus the tolerance.

    Guarantee: lower <= sup |f| <= upper. If the evaluations do not suffice, or float64 does not resolve the tolerance,
    the ends are farther apart than the tolerance and `reached` is False; they hold all the same.
    Cost: one evaluation for each face, then about (K / tolerance)^2 times the area where |f| is near its largest value.
    Reference: Lipschitz optimisation by branch and bound, Piyavskii 1972; for triangles ours.

    Args:
        tolerance: How far apart the two ends may be.
        evaluations: About how many points may be evaluated, if there are not more faces.
    """
    if not 0 < as_number(tolerance, "tolerance") < math.inf:
        raise ArgumentError(f"A tolerance is a finite number > 0, got {tolerance}.")
    constant, surface = constant_of(f), surface_of(mesh)
    as_whole(evaluations, "evaluations")
    if f.dim != 3:
        raise ShapeError(f"Surfaces are in space, got a field of {f.dim} coordinates.")
    search = _Search(f, constant, _ROUNDED_CORNERS * float(surface.corners.abs().max()))
    search.add(surface.corners)
    while len(search.bounds) and search.count < evaluations:
        if float(search.bounds.max()) - search.lower <= tolerance:
            break
        search.split(tolerance, evaluations)
    upper = max(search.lower, search.settled, float(search.bounds.max()) if len(search.bounds) else 0.0)
    found = Deviation(search.lower, upper, float(tolerance), search.count)
    object.__setattr__(found, "of", f)
    return found


def surface_of(mesh: Mesh | Triangles) -> Triangles:
    """The triangles of a mesh, or these themselves; anything else is refused."""
    if not isinstance(mesh, Mesh | Triangles):
        raise ArgumentError(
            f"A surface is an sdf.Mesh or sdf.Triangles, got {type(mesh).__name__}; make one of vertices and faces."
        )
    return mesh.triangles if isinstance(mesh, Mesh) else mesh


class _Search:
    """Pieces that may still hold the largest value, with an upper bound of |f| on each."""

    def __init__(self, f: Field, constant: float, shift: float) -> None:
        self.f, self.constant, self.shift = f, constant, shift
        self.lower = self.settled = 0.0
        self.count = 0
        self.pieces: Float64[Tensor, "n 3 3"] = torch.empty((0, 3, 3), dtype=torch.float64)
        self.bounds: Float64[Tensor, " n"] = torch.empty(0, dtype=torch.float64)

    def add(self, pieces: Float64[Tensor, "n 3 3"]) -> None:
        """Evaluate new pieces; keep those that can be cut."""
        parts = [self._bounds(part) for part in pieces.split(_AT_ONCE)]
        bounds, small = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        self._settle(bounds[small])
        self.pieces = torch.cat([self.pieces, pieces[~small]])
        self.bounds = torch.cat([self.bounds, bounds[~small]])

    def split(self, tolerance: float, evaluations: int) -> None:
        """Halve the pieces with the largest bounds, and drop those that do not matter any more."""
        matters = self.bounds - self.lower > tolerance
        self._settle(self.bounds[~matters])
        self.pieces, self.bounds = self.pieces[matters], self.bounds[matters]
        # All of them must be cut unless a larger value turns up, so half of many go at once.
        most = max(_AT_ONCE // 2, len(self.bounds) // 2)
        most = min(most, len(self.bounds), max(1, (evaluations - self.count) // 2))
        chosen = self.bounds.topk(most, sorted=False).indices
        rest = torch.ones(len(self.bounds), dtype=torch.bool).index_fill_(0, chosen, False)
        halves = halve(self.pieces[chosen])
        self.pieces, self.bounds = self.pieces[rest], self.bounds[rest]
        self.add(halves)

    def _settle(self, bounds: Float64[Tensor, " n"]) -> None:
        if len(bounds):
            self.settled = max(self.settled, float(bounds.max()))

    def _bounds(self, pieces: Float64[Tensor, "n 3 3"]) -> tuple[Tensor, Tensor]:
        """An upper bound of |f| on each piece, and whether it is too small to be cut."""
        center = pieces.mean(1)
        # The true piece is within the shift of this one, and so is the center, which is rounded as well.
        radius = norm_up(pieces - center[:, None], 1).amax(1) + self.shift
        found = self.f.measure(center)
        self.count += len(center)
        size = found.value.abs()
        lower = (size - found.error - self.constant * self.shift) * (1 - ROUNDINGS_16)
        self.lower = max(self.lower, float(lower.max()))
        return (size + found.error + self.constant * radius) * (1 + ROUNDINGS_16), radius < 4 * self.shift
