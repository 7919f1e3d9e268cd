"""The signed distance of a closed triangle mesh."""

from typing import Any, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.sdf._base import Field, check_points
from lipkit.sdf.meshes.crossings import crossings
from lipkit.sdf.meshes.holes import require_closed
from lipkit.sdf.meshes.nearest_faces import NearestFaces
from lipkit.sdf.meshes.triangles import Triangles


@final
class Mesh(Field):
    """The distance to the triangles of a closed mesh, positive where its winding number is not 0.

        f(x) = s d(x),   s = +1 if w(x) != 0, else -1

    The signed count of faces at every edge must be zero; then w is a whole number off the surface and changes on it
    only, so f is 1-Lipschitz, whatever folds, intersections, or parts inside of others the mesh has. (For an open mesh
    the sign of w - 1/2 jumps away from the surface, and no constant holds; `close_holes` caps it.) Faces inside of the
    solid, where sheets intersect, are zeros of f as well.

    Guarantee: the exact distance, K = 1. The sign is exact at every point that is not on the surface, the distance
    within a few roundings of itself and of the longest edge. Computed on the CPU, for points on any device.
    Cost: O(f log f) to build; O(log f) a point near the surface.
    Reference: winding numbers of meshes: Jacobson et al. 2013. Rays with exact predicates are classical; bounds of
    rounding are ours.

    Args:
        vertices: Coordinates, as a tensor or an array of numbers.
        faces: Three rows of `vertices` for each triangle, counted from 0, counter-clockwise seen from outside.
    """

    def __init__(self, vertices: Float64[Tensor, "v 3"] | Any, faces: Int64[Tensor, "f 3"] | Any) -> None:
        self.triangles: Triangles = Triangles(vertices, faces)
        require_closed(self.triangles)
        self._corners = self.triangles.corners
        self._nearest = NearestFaces(self._corners)
        self._low, self._high = self._corners.amin((0, 1)), self._corners.amax((0, 1))
        # Faces of a mesh of positive volume have normals that point out of it.
        self._turn = float((self._corners - self._low).det().sum().sign())

    @property
    def vertices(self) -> Float64[Tensor, "v 3"]:
        """Coordinates of the vertices."""
        return self.triangles.vertices

    @property
    def faces(self) -> Int64[Tensor, "f 3"]:
        """Three rows of `vertices` for each triangle."""
        return self.triangles.faces

    @property
    def dim(self) -> int:
        return 3

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def winding_number(self, x: Float[Tensor, "n 3"]) -> Int64[Tensor, " n"]:
        """How often the mesh goes around each point that is not on it; exact."""
        return self._windings(check_points(x, 3).detach().cpu()).to(x.device)

    def _windings(self, x: Float64[Tensor, "n 3"]) -> Int64[Tensor, " n"]:
        found = torch.zeros(len(x), dtype=torch.int64)
        (rows,) = ((x >= self._low) & (x <= self._high)).all(1).nonzero(as_tuple=True)
        points = x[rows]

        def keeps(index: Tensor, low: Tensor, high: Tensor) -> Tensor:
            q = points.index_select(0, index)[:, :, None]
            beside = (low[:, :2] <= q[:, :2]) & (q[:, :2] <= high[:, :2])
            return beside.all(1) & (q[:, 2] <= high[:, 2])

        # A face that was cut into pieces may come several times, and counts once.
        hits = [torch.empty((0, 3), dtype=torch.int64)]
        for index, face in self._nearest.tree.search(len(points), keeps):
            sign = crossings(points.index_select(0, index), self._corners.index_select(0, face))
            hits.append(torch.stack([index, face, sign], 1)[sign != 0])
        index, _, sign = torch.unique(torch.cat(hits), dim=0).unbind(1)
        found.index_add_(0, rows[index], sign)
        return found

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        here = points.detach().cpu()
        distance, face = self._nearest(here)
        sign = torch.where(self._windings(here) != 0, 1.0, -1.0).to(torch.float64)
        value = (sign * distance).to(points.device)
        if not points.requires_grad:
            return value
        slope = sign[:, None] * self._nearest.flat.directions(here, face)
        on_it = distance <= self._nearest.absolute
        slope[on_it] = -self._turn * self._nearest.flat.normals(face[on_it])
        # The value as it is, and a gradient of length one; on the surface, inwards.
        return value + ((points - points.detach()) * slope.to(points.device)).sum(1)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del points
        return self._nearest.relative * values.abs() + self._nearest.absolute
