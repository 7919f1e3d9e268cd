"""A closed mesh from a file, for a command that learns its surface."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit import sdf
from lipkit.errors import ArgumentError
from lipkit.sdf.meshes.holes import boundary_loops

# Volume in cubes of the diagonal, below which it is rounding.
_FLAT = 1e-12


@final
@dataclass(frozen=True, eq=False)
class ClosedMesh:
    """A closed mesh, how many holes were capped, and the SHA-256 of its file."""

    mesh: sdf.Mesh
    holes: int
    digest: str

    @classmethod
    def read(cls, path: Path, close_holes: bool) -> "ClosedMesh":
        """The mesh of a file; one that is open is refused in one sentence, or capped if `close_holes`."""
        found = sdf.read_mesh(path)
        loops = len(boundary_loops(found))
        if loops and not close_holes:
            ends = "a loop" if loops == 1 else f"{loops} loops"
            raise ArgumentError(
                f"{path} is open, so it has no inside: its faces end at {ends} of edges; cap them with --close-holes, "
                "or orient all faces alike if that is the reason."
            )
        closed = sdf.close_holes(found.vertices, found.faces)
        if _is_flat(closed):
            raise ArgumentError(
                f"{path} encloses no volume, so it has no inside: every face has another one on its back, or parts of "
                "it are inside out; give the surface of a solid."
            )
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(sdf.Mesh(closed.vertices, closed.faces), loops, digest)

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of the file, by name."""
        return {"SHA-256 of the mesh": self.digest}


def _is_flat(closed: sdf.Triangles) -> bool:
    """Whether the volume, a sum of signed tetrahedra, is 0 up to rounding."""
    corners = (closed.corners - closed.vertices[0]) / closed.diagonal
    return abs(float(corners.det().sum())) < _FLAT
