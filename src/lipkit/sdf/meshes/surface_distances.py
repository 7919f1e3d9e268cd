"""Distances between surfaces and averages over them, from points drawn on them; and proven ones."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._seeds import derive_seed, generator
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.sdf._base import Field
from lipkit.sdf.meshes.deviation import Deviation, deviation, surface_of
from lipkit.sdf.meshes.mesh_field import Mesh
from lipkit.sdf.meshes.nearest_faces import NearestFaces
from lipkit.sdf.meshes.triangles import Triangles

# Below any extent of a mesh.
_NOTHING = 2.0**-1000


@final
@dataclass(frozen=True)
class SurfaceMean:
    """An ESTIMATE of a mean over a surface, with its standard error."""

    mean: float
    standard_error: float


@final
@dataclass(frozen=True)
class SurfaceDistances:
    """Sampled distances between two surfaces.

    Args:
        forth: The mean distance from the first surface to the second; an ESTIMATE.
        back: The mean distance from the second surface to the first.
        hausdorff: The largest distance of a sample, either way: LOWER for the Hausdorff distance, up to rounding.
    """

    forth: SurfaceMean
    back: SurfaceMean
    hausdorff: float

    @property
    def chamfer(self) -> float:
        """The Chamfer distance: the mean of both ways, (forth + back)/2."""
        return (self.forth.mean + self.back.mean) / 2


def sample_surface(mesh: Mesh | Triangles, count: int, seed: int = 0) -> Float64[Tensor, "count 3"]:
    """Points drawn uniformly by area from a surface.

    A face is drawn by its area, and a point (1 - r) a + r (1 - t) b + r t c on it, r the root of a uniform number.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"A number of points is a whole number > 0, got {count}.")
    corners = surface_of(mesh).corners
    source = generator(seed)
    # Lengths in units of the largest one, so that no area overflows.
    scale = float(corners.sub(corners[0, 0]).abs().max())
    sides = (corners[:, 1:] - corners[:, :1]) / max(scale, _NOTHING)
    total = torch.linalg.vector_norm(torch.linalg.cross(sides[:, 0], sides[:, 1]), dim=1).cumsum(0)
    if not float(total[-1]) > 0:
        raise ArgumentError(f"All {len(corners)} faces have no area, so no point of them can be drawn by area.")
    face, root, split = torch.rand((3, count), generator=source, dtype=torch.float64)
    # A face without area has no numbers of its own, also at the ends.
    chosen = torch.searchsorted(total, face * total[-1], right=True).clamp(max=int((total < total[-1]).sum()))
    a, b, c = corners[chosen].unbind(1)
    root, split = root.sqrt()[:, None], split[:, None]
    return (1 - root) * a + root * (1 - split) * b + root * split * c


def mean_deviation(f: Field, mesh: Mesh | Triangles, samples: int = 100_000, seed: int = 0) -> SurfaceMean:
    """The mean of |f| over a surface, from points drawn uniformly. Guarantee: none, an ESTIMATE."""
    if f.dim != 3:
        raise ShapeError(f"Surfaces are in space, got a field of {f.dim} coordinates.")
    with torch.no_grad():
        return _mean(torch.cat([f(part).abs().cpu() for part in sample_surface(mesh, samples, seed).split(2**14)]))


def surface_distances(
    first: Mesh | Triangles, second: Mesh | Triangles, samples: int = 100_000, seed: int = 0
) -> SurfaceDistances:
    """Chamfer and Hausdorff distances of two surfaces, open or closed, from points drawn uniformly on both.

    Distances to triangles are exact, so more samples do not change what is estimated. Cost: O(log f) a sample.
    """
    one, two = surface_of(first), surface_of(second)
    forth, _ = NearestFaces(two.corners)(sample_surface(one, samples, derive_seed(seed, 0)))
    back, _ = NearestFaces(one.corners)(sample_surface(two, samples, derive_seed(seed, 1)))
    return SurfaceDistances(_mean(forth), _mean(back), max(float(forth.max()), float(back.max())))


def hausdorff(
    first: Mesh | Triangles, second: Mesh | Triangles, tolerance: float, evaluations: int = 2_000_000
) -> Deviation:
    """The Hausdorff distance of two surfaces, open or closed, between two proven ends.

    The distance to a surface is 1-Lipschitz, and `deviation` encloses its largest value on the other one, both ways.
    Guarantee and cost: as of `deviation`, with this many evaluations for each way.
    """
    one, two = surface_of(first), surface_of(second)
    forth = deviation(_Distance(two), one, tolerance, evaluations)
    back = deviation(_Distance(one), two, tolerance, evaluations)
    return Deviation(
        max(forth.lower, back.lower),
        max(forth.upper, back.upper),
        forth.tolerance,
        forth.evaluations + back.evaluations,
    )


@final
class _Distance(Field):
    """Minus the distance to a surface: the signed distance of what has no inside."""

    def __init__(self, surface: Triangles) -> None:
        self._nearest = NearestFaces(surface.corners)

    @property
    def dim(self) -> int:
        return 3

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return -self._nearest(points.detach())[0]

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del points
        return self._nearest.relative * values.abs() + self._nearest.absolute


def _mean(numbers: Float64[Tensor, " n"]) -> SurfaceMean:
    spread = float(numbers.std()) if len(numbers) > 1 else float("inf")
    return SurfaceMean(float(numbers.mean()), spread / len(numbers) ** 0.5)
