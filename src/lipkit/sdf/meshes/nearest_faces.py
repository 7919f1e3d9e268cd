"""The nearest triangle of a mesh to each of many points."""

from typing import Final, final

import scipy
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.sdf.meshes.box_tree import BoxTree
from lipkit.sdf.meshes.flat_triangles import FlatTriangles

# Squares of distances stay finite.
_FARTHEST: Final = 2.0**500
# The first distance need not be the best one, and an approximate search takes half the time far from the surface.
_APPROXIMATELY: Final = 0.3


@final
class NearestFaces:
    """Distances to the nearest of many triangles, by a tree of boxes.

    The face around the nearest center of a piece gives a first distance, and boxes that are farther are left out.

    Guarantee: |distance - true distance| <= `relative` distance + `absolute`: a face that is left out is farther than
    what was found up to 8 roundings. Cost: O(log f) a point near the surface, up to O(f) where many faces are as near.
    """

    def __init__(self, corners: Float64[Tensor, "f 3 3"]) -> None:
        self.tree: BoxTree = BoxTree(corners)
        self.flat: FlatTriangles = FlatTriangles(corners)
        self._centers = scipy.spatial.KDTree(self.tree.centers.numpy())
        self.relative: float = self.flat.relative
        self.absolute: float = self.flat.absolute

    def __call__(self, points: Float64[Tensor, "n 3"]) -> tuple[Float64[Tensor, " n"], Int64[Tensor, " n"]]:
        """(distance, face) for each point."""
        if not bool((points.abs() < _FARTHEST).all()):
            raise NonFiniteError("Some points are so far out that the square of their distance has no float64 number.")
        _, center = self._centers.query(points.numpy(), eps=_APPROXIMATELY)
        face = self.tree.face[torch.from_numpy(center)]
        best = self.flat.squares(points, face)

        def keeps(index: Tensor, low: Tensor, high: Tensor) -> Bool[Tensor, "k b"]:
            q = points.index_select(0, index)[:, :, None]
            gap = torch.maximum(low - q, q - high).clamp_(min=0)
            return gap.square_().sum(1) < best.index_select(0, index)[:, None]

        for index, candidate in self.tree.search(len(points), keeps):
            square = self.flat.squares(points.index_select(0, index), candidate)
            best.scatter_reduce_(0, index, square, "amin")
            found = square == best[index]
            face[index[found]] = candidate[found]
        return best.sqrt(), face
