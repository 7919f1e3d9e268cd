"""Distances to triangles: each in a frame of its own, where it lies flat with its longest edge along the first axis."""

from typing import Final, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.rounding.slacks import UNIT
from lipkit.sdf.meshes.pieces import edge_lengths

# The squares of shorter lengths may not be normal numbers; by the limits on coordinates they are below any rounding.
_NOTHING: Final = 2.0**-1000
_UNDERFLOW: Final = 2.0**-400


@final
class FlatTriangles:
    """Triangles in frames where they have the corners (0, 0, 0), (l, 0, 0), (x, h, 0), 0 <= x <= l.

    Nothing is assumed of the frames: how far they are from orthonormal, and how far corners are from where they should
    be, is measured, so thin triangles and points for triangles are as good as any.

    Guarantee: a computed distance d is within `relative` d + `absolute` of the true one. In units of u = 2^-53, with D
    the length of q - a (at most the distance + l): the coordinates of a point q carry 8 u D; the foot on an edge 6 u D,
    to which the distance adds at most as much; differences from it 3 u (D + 2l), roots and squares 4 u d; a point that
    is taken for one above the triangle is at most 3 u h away from it along the second axis.
    """

    def __init__(self, corners: Float64[Tensor, "f 3 3"]) -> None:
        longest = edge_lengths(corners).argmax(1)
        turn = (longest[:, None] + torch.arange(3)) % 3
        start, end, apex = corners.gather(1, turn[:, :, None].expand(-1, -1, 3)).unbind(1)
        base, side = end - start, apex - start
        first = _unit(base, torch.tensor([1.0, 0, 0], dtype=torch.float64))
        # The axis that is farthest from the first one, for triangles without a height.
        spare = torch.eye(3, dtype=torch.float64)[first.abs().argmin(1)]
        second = _across(_unit(_across(side, first), _unit(_across(spare, first), spare)), first)
        second = _unit(second, spare)
        frame = torch.stack([first, second, torch.linalg.cross(first, second)], 1)
        length = torch.linalg.vector_norm(base, dim=1)
        local = torch.einsum("fij,fj->fi", frame, side)
        height = local[:, 1].clamp(min=0)
        along = torch.minimum(local[:, 0].clamp(min=0), length)
        flat = torch.stack([along, height, torch.zeros_like(along)], 1)
        moved = torch.einsum("fij,fj->fi", frame, base)
        moved[:, 0] -= length
        defect = float((frame @ frame.mT - torch.eye(3, dtype=torch.float64)).flatten(1).norm(dim=1).max())
        shift = torch.maximum(torch.linalg.vector_norm(local - flat, dim=1), torch.linalg.vector_norm(moved, dim=1))
        # Twice what the lines above add up to.
        self.relative: float = 2 * (defect + 64 * UNIT)
        self.absolute: float = 2 * float((shift + 128 * UNIT * length).max()) + _UNDERFLOW
        self._data: Float64[Tensor, "f 15"] = torch.cat(
            [start, frame.flatten(1), torch.stack([length, along, height], 1)], 1
        )

    def squares(self, points: Float64[Tensor, "k 3"], faces: Int64[Tensor, " k"]) -> Float64[Tensor, " k"]:
        """The squared distance from each point to its face."""
        gap = self._offsets(points, faces)[0]
        return gap.square().sum(0)

    def directions(self, points: Float64[Tensor, "k 3"], faces: Int64[Tensor, " k"]) -> Float64[Tensor, "k 3"]:
        """Unit vectors from the nearest point of its face to each point; the normal of the face where they meet."""
        gap, data = self._offsets(points, faces)
        frame = data[3:12].unflatten(0, (3, 3))
        return _unit((frame * gap[:, None]).sum(0).T, frame[2].T)

    def normals(self, faces: Int64[Tensor, " k"]) -> Float64[Tensor, "k 3"]:
        """The unit normals of faces, on the side from which their corners are counter-clockwise."""
        # A frame begins along an edge and goes on to the third corner, so it turns as the corners do.
        return self._data[faces, 9:12]

    def _offsets(self, points: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
        """From the nearest point of the face to the point, in the frame of the face, and the data of the faces."""
        data = self._data.index_select(0, faces).T
        q = points.T - data[:3]
        x, y, z = (data[3 + 3 * i] * q[0] + data[4 + 3 * i] * q[1] + data[5 + 3 * i] * q[2] for i in range(3))
        length, along, height = data[12], data[13], data[14]
        rest = length - along
        beyond = x - length
        # A gap in the plane of the triangle: to its base, to its left side, to its right side; none above it.
        dx, dy = x - torch.minimum(x.clamp(min=0), length), y
        left = ((x * along + y * height) / _divisor(along * along + height * height)).clamp(0, 1)
        dx, dy = _shorter(dx, dy, x - left * along, y - left * height)
        right = ((y * height - beyond * rest) / _divisor(rest * rest + height * height)).clamp(0, 1)
        dx, dy = _shorter(dx, dy, beyond + right * rest, y - right * height)
        above = (x >= 0) & (beyond <= 0) & (y >= 0) & (y <= height)
        above &= (y * along <= height * x) & (y * rest <= -height * beyond)
        return torch.stack([dx.masked_fill(above, 0), dy.masked_fill(above, 0), z]), data


def _shorter(ax: Tensor, ay: Tensor, bx: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    nearer = bx * bx + by * by < ax * ax + ay * ay
    return torch.where(nearer, bx, ax), torch.where(nearer, by, ay)


def _divisor(square: Tensor) -> Tensor:
    return torch.where(square > _NOTHING, square, torch.inf)


def _across(vectors: Tensor, direction: Tensor) -> Tensor:
    """What is left of vectors without their part along a unit vector."""
    return vectors - (vectors * direction).sum(1, keepdim=True) * direction


def _unit(vectors: Tensor, otherwise: Tensor) -> Tensor:
    """Vectors of length one, and others where there is none."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return torch.where(length**2 > _NOTHING, vectors / length, otherwise)
