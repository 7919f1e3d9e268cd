"""Points around a surface with the values that a field should have there."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from lipkit._seeds import derive_seed, generator
from lipkit.errors import ArgumentError
from lipkit.sdf.exact.points import Points
from lipkit.sdf.meshes.mesh_field import Mesh
from lipkit.sdf.meshes.surface_distances import sample_surface

# Offsets of points from the surface, as parts of its diagonal; 0 is on it.
_OFFSETS = (0.0, 0.002, 0.006, 0.02, 0.06)
# Share of the points that lie near the surface; the others fill a box that is larger than the surface by this factor.
_NEAR, _ROOM = 0.85, 1.3
# Nearest samples that vote on the side of a point.
_VOTES = 5


@final
@dataclass(frozen=True, eq=False)
class SurfaceSamples:
    """Points, the values that a field should have there, and a box around the surface."""

    points: Float64[Tensor, "n d"]
    values: Float64[Tensor, " n"]
    center: Float64[Tensor, " d"]
    diagonal: float


def draw_around_mesh(mesh: Mesh, count: int, seed: int) -> SurfaceSamples:
    """Exact distances of points near a mesh and in a box around it. Cost: `count` queries of the mesh."""
    low, high = mesh.triangles.corners.amin((0, 1)), mesh.triangles.corners.amax((0, 1))
    near = sample_surface(mesh, round(_NEAR * count), derive_seed(seed, 0))
    points = _spread(near, low, high, count, derive_seed(seed, 1))
    return SurfaceSamples(points, mesh(points), (low + high) / 2, mesh.triangles.diagonal)


def draw_around_points(
    cloud: Float64[Tensor, "m d"], normals: Float64[Tensor, "m d"], count: int, seed: int
) -> SurfaceSamples:
    """Distances of points to a cloud with normals that point outwards, estimated.

    A point x has the side on which most of its five nearest samples p see it, by the sign of <p - x, normal>. Its value
    is the mean of these products where x is nearer than the samples are to each other, and the distance to the nearest
    sample elsewhere. Guarantee: none, both are estimates. Cost: `count` queries of `Points`.
    """
    lengths = torch.linalg.vector_norm(normals, dim=1, keepdim=True)
    if not bool((lengths > 0).all()):
        raise ArgumentError(f"{int((lengths == 0).sum())} of {len(normals)} normals are zero; leave those points out.")
    normals = normals / lengths
    low, high, diagonal = require_extent(cloud)
    source = generator(derive_seed(seed, 0))
    near = cloud[torch.randint(len(cloud), (round(_NEAR * count),), generator=source)]
    points = _spread(near, low, high, count, derive_seed(seed, 1))
    spacing = -Points(cloud, neighbors=2)(cloud).median()
    values = torch.cat([_signed(part, cloud, normals, spacing) for part in points.split(4096)])
    return SurfaceSamples(points, values, (low + high) / 2, diagonal)


def labelled(points: Float64[Tensor, "n d"], inside: Bool[Tensor, " n"]) -> SurfaceSamples:
    """Points that are known to be inside or outside; their values say no more than that by their signs."""
    low, high, diagonal = require_extent(points)
    return SurfaceSamples(points, torch.where(inside, 1.0, -1.0).to(points), (low + high) / 2, diagonal)


def require_extent(points: Float64[Tensor, "n d"]) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " d"], float]:
    """The ends of the box around points, and its diagonal; points that are all the same are refused."""
    low, high = points.amin(0), points.amax(0)
    diagonal = float(torch.linalg.vector_norm(high - low))
    if not diagonal > 0:
        raise ArgumentError("The points are all the same, so there is no surface; give points around one.")
    return low, high, diagonal


def _signed(x: Tensor, cloud: Tensor, normals: Tensor, spacing: Tensor) -> Tensor:
    distance, chosen = torch.cdist(x, cloud).topk(min(_VOTES, len(cloud)), largest=False)
    inwards = ((cloud[chosen] - x[:, None]) * normals[chosen]).sum(2)
    side = torch.where((inwards > 0).sum(1) * 2 > inwards.shape[1], 1.0, -1.0).to(x)
    return torch.where(distance[:, 0] < spacing, inwards.mean(1), side * distance[:, 0])


def _spread(near: Tensor, low: Tensor, high: Tensor, count: int, seed: int) -> Tensor:
    """The points with offsets of several sizes, and others that fill a box."""
    source = generator(seed)
    diagonal = torch.linalg.vector_norm(high - low)
    sizes = torch.tensor(_OFFSETS, dtype=torch.float64)[torch.arange(len(near)) % len(_OFFSETS)] * diagonal
    moved = near + sizes[:, None] * torch.randn(near.shape, generator=source, dtype=torch.float64)
    cube = torch.rand((count - len(near), len(low)), generator=source, dtype=torch.float64) * 2 - 1
    # The box keeps its shape, and has room for what lies beyond its sides even where the surface is flat.
    half = (high - low) / 2 * _ROOM + (_ROOM - 1) / 4 * diagonal
    return torch.cat([moved, (low + high) / 2 + half * cube])
