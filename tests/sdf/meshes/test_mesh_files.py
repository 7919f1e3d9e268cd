"""Mesh files are read, written, and refused."""

from pathlib import Path

import pytest
import torch

from lipkit import sdf
from lipkit.errors import ArgumentError, NonFiniteError
from support.meshes import icosphere

pytest.importorskip("trimesh")


@pytest.mark.parametrize(
    ("ending", "exact"), [("obj", True), ("off", True), ("ply", True), ("stl", False), ("OBJ", True)]
)
def test_a_surface_comes_back(tmp_path: Path, ending: str, exact: bool):
    vertices, faces = icosphere(2)
    # Small numbers of many digits.
    surface = sdf.Triangles(vertices * 1e-5 / 3, faces)
    sdf.write_mesh(surface, tmp_path / f"ball.{ending}")
    found = sdf.read_mesh(tmp_path / f"ball.{ending}")
    if not exact:
        # Single precision.
        assert torch.allclose(found.corners, surface.corners, rtol=1e-6, atol=1e-12)
    else:
        assert torch.equal(found.corners, surface.corners)
    assert len(found.vertices) == len(vertices)
    sdf.Mesh(found.vertices, found.faces)


def test_seams_of_textures_are_welded(tmp_path: Path):
    """Two texture coordinates at one vertex must not open a surface."""
    vertices, faces = icosphere(1)
    lines = [f"v {x} {y} {z}" for x, y, z in vertices.tolist()]
    lines += [f"vt {i / 1000} 0.5" for i in range(3 * len(faces))]
    for i, face in enumerate((faces + 1).tolist()):
        lines.append("f " + " ".join(f"{corner}/{3 * i + k + 1}" for k, corner in enumerate(face)))
    (tmp_path / "seams.obj").write_text("\n".join(lines))
    found = sdf.read_mesh(tmp_path / "seams.obj")
    assert (len(found.vertices), len(found.faces)) == (len(vertices), len(faces))
    sdf.Mesh(found.vertices, found.faces)


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("a.obj", None, ArgumentError, "no file"),
        ("a.txt", "", ArgumentError, r"\.obj, \.ply"),
        ("a.obj", "", ArgumentError, "a.obj"),
        ("a.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\n", ArgumentError, "triangles"),
        ("a.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 7\n", ArgumentError, "a.obj|vertices 0 to 2"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n", ArgumentError, "a.off|vertices 0 to 2"),
        ("a.off", "OFF\n3 1 0\n0 0 0\nnan 0 0\n0 1 0\n3 0 1 2\n", NonFiniteError, "1 of 3"),
        ("a.ply", "ply\nformat ascii 1.0\nelement", ArgumentError, "a.ply"),
        ("a.stl", "solid nothing", ArgumentError, "a.stl"),
    ],
)
def test_files_that_are_no_meshes_are_refused(
    tmp_path: Path, name: str, content: str | None, error: type[Exception], words: str
):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=words):
        sdf.read_mesh(tmp_path / name)


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path):
    with pytest.raises(ArgumentError, match="cannot be written"):
        sdf.write_mesh(sdf.Triangles(*icosphere(0)), tmp_path / "missing" / "a.obj")
    with pytest.raises(ArgumentError, match="end in"):
        sdf.write_mesh(sdf.Triangles(*icosphere(0)), tmp_path / "a.gltf")
