"""Mesh files, read and written through trimesh."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from lipkit._files import write_whole
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.sdf.meshes.triangles import Triangles, weld


def read_mesh(path: str | Path) -> Triangles:
    """The surface in a file (.obj, .ply, .stl, .off), with vertices of equal coordinates merged.

    Textures, colours and normals are left out; polygons are cut into triangles. The surface may be open.
    """
    path = Path(path)
    _check_format(path)
    if not path.is_file():
        raise ArgumentError(f"There is no file {path}; name a mesh file.")
    trimesh = _trimesh()
    try:
        # Without processing, for trimesh would repair what should be refused here.
        found = trimesh.load(path, force="mesh", process=False)
    except (ValueError, LookupError, TypeError, AttributeError, OSError, NotImplementedError) as error:
        raise ArgumentError(
            f"{path} cannot be read as a mesh ({type(error).__name__}: {error}); is it intact?"
        ) from error
    if len(found.vertices) == 0 or len(found.faces) == 0:
        raise ArgumentError(
            f"{path} has {len(found.vertices)} vertices and {len(found.faces)} triangles; a mesh needs both."
        )
    return weld(Triangles(torch.tensor(found.vertices), torch.tensor(found.faces)))


def write_mesh(mesh: Triangles, path: str | Path) -> None:
    """Save a surface, in the format that the ending names (.obj, .ply, .stl, .off), whole or not at all.

    Coordinates are kept to the bit; only .stl rounds them, to single precision.
    """
    path = Path(path)
    _check_format(path)
    write_whole(path, _WRITERS[path.suffix.lower()](mesh))


def _as_obj(mesh: Triangles) -> bytes:
    lines = [f"v {x!r} {y!r} {z!r}" for x, y, z in mesh.vertices.tolist()]
    lines += [f"f {a} {b} {c}" for a, b, c in (mesh.faces + 1).tolist()]
    return ("\n".join(lines) + "\n").encode()


def _as_off(mesh: Triangles) -> bytes:
    lines = ["OFF", f"{len(mesh.vertices)} {len(mesh.faces)} 0"]
    lines += [f"{x!r} {y!r} {z!r}" for x, y, z in mesh.vertices.tolist()]
    lines += [f"3 {a} {b} {c}" for a, b, c in mesh.faces.tolist()]
    return ("\n".join(lines) + "\n").encode()


def _as_ply(mesh: Triangles) -> bytes:
    header = (
        f"ply\nformat binary_little_endian 1.0\nelement vertex {len(mesh.vertices)}\n"
        "property double x\nproperty double y\nproperty double z\n"
        f"element face {len(mesh.faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    rows = np.empty(len(mesh.faces), dtype=[("count", "u1"), ("corners", "<i4", 3)])
    rows["count"], rows["corners"] = 3, mesh.faces.numpy()
    return header.encode() + mesh.vertices.numpy().astype("<f8").tobytes() + rows.tobytes()


def _as_stl(mesh: Triangles) -> bytes:
    return _trimesh().Trimesh(mesh.vertices.numpy(), mesh.faces.numpy(), process=False).export(file_type="stl")


_WRITERS: Final = {".obj": _as_obj, ".ply": _as_ply, ".stl": _as_stl, ".off": _as_off}


def _check_format(path: Path) -> None:
    if path.suffix.lower() not in _WRITERS:
        raise ArgumentError(f"Mesh files end in {', '.join(_WRITERS)}, got {path.name}; convert it first.")


def _trimesh() -> Any:
    try:
        import trimesh
    except ModuleNotFoundError as error:
        raise UnsupportedError("Reading and writing meshes needs trimesh; pip install 'lipkit[meshes]'.") from error
    return trimesh
