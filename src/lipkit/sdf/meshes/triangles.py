"""Triangle meshes as plain data: vertices, and three of them for each face."""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf.given_numbers import as_plain_tensor, as_reals

# Products of four coordinates stay normal numbers, and a triangle that float64 cannot resolve is below any rounding.
_SMALLEST: Final = 2.0**-200
_LARGEST: Final = 2.0**200


@final
@dataclass(frozen=True, eq=False, init=False)
class Triangles:
    """A surface of triangles in space, open or closed; faces list their corners counter-clockwise seen from outside.

    Args:
        vertices: Coordinates, as a tensor or an array of numbers.
        faces: Three rows of `vertices` for each triangle, counted from 0.
    """

    vertices: Float64[Tensor, "v 3"]
    faces: Int64[Tensor, "f 3"]

    def __init__(self, vertices: Any, faces: Any) -> None:
        corners = _checked_vertices(as_reals(vertices, "vertices").cpu())
        object.__setattr__(self, "vertices", corners)
        object.__setattr__(self, "faces", _checked_faces(as_plain_tensor(faces, "faces").cpu(), len(corners)))

    @property
    def corners(self) -> Float64[Tensor, "f 3 3"]:
        """The coordinates of the three corners of each face."""
        return self.vertices[self.faces]

    @property
    def diagonal(self) -> float:
        """The length of the diagonal of the bounding box of all faces."""
        corners = self.corners.flatten(0, 1)
        return float(torch.linalg.vector_norm(corners.amax(0) - corners.amin(0)))


def weld(surface: Triangles) -> Triangles:
    """The same surface with vertices of equal coordinates merged, which files split along seams of their textures.

    Faces that lose a corner by it have no area, and go; so do vertices without a face. Cost: one sort.
    """
    # -0.0 equals 0.0 and has other bits, by which rows are compared.
    merged, place = np.unique(surface.vertices.numpy() + 0.0, axis=0, return_inverse=True)
    faces = torch.from_numpy(place.reshape(-1))[surface.faces]
    distinct = (faces != faces.roll(1, 1)).all(1)
    used, faces = torch.unique(faces[distinct], return_inverse=True)
    return Triangles(torch.from_numpy(merged)[used], faces)


def _checked_vertices(vertices: Tensor) -> Tensor:
    if vertices.ndim != 2 or vertices.shape[1] != 3 or len(vertices) == 0:
        raise ShapeError(f"Vertices have shape (v, 3) with v > 0, got {tuple(vertices.shape)}.")
    bad = ~torch.isfinite(vertices).all(1)
    if bool(bad.any()):
        raise NonFiniteError(
            f"{int(bad.sum())} of {len(vertices)} vertices have NaN or infinite coordinates; repair them."
        )
    size = float((vertices.amax(0) - vertices.amin(0)).max())
    if float(vertices.abs().max()) > _LARGEST or not size > _SMALLEST:
        raise ArgumentError(
            f"A mesh has an extent above 2^-200 and coordinates up to 2^200, got {size:.3g} and "
            f"{float(vertices.abs().max()):.3g}; scale it, or check that its vertices are not all the same."
        )
    return vertices


def _checked_faces(faces: Tensor, count: int) -> Tensor:
    if faces.ndim != 2 or faces.shape[1] != 3 or len(faces) == 0:
        raise ShapeError(
            f"Faces have shape (f, 3) with f > 0, got {tuple(faces.shape)}: a mesh has at least one triangle."
        )
    if faces.is_floating_point() or faces.is_complex() or faces.dtype == torch.bool:
        raise ArgumentError(f"Faces are whole numbers, rows of the vertices, got {faces.dtype}.")
    faces = faces.to(torch.int64)
    low, high = int(faces.min()), int(faces.max())
    if low < 0 or high >= count:
        raise ArgumentError(f"Faces name vertices 0 to {count - 1}, got {low} to {high}; does the file count from 1?")
    return faces
