"""The meshes that everyone knows, where a folder has them."""

import os
from pathlib import Path

import pytest
import torch

from lipkit import sdf
from lipkit.sdf.meshes.holes import boundary_loops


def surface(name: str) -> sdf.Triangles:
    pytest.importorskip("trimesh")
    if "LIPKIT_DATA" not in os.environ:
        pytest.skip("LIPKIT_DATA is not set to a folder with meshes/")
    path = Path(os.environ["LIPKIT_DATA"]) / "meshes" / f"{name}.obj"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return sdf.read_mesh(path)


def test_spot_is_closed_once_its_seams_are_welded():
    spot = surface("spot")
    assert len(spot.vertices) == 2930
    sdf.Mesh(spot.vertices, spot.faces)


def test_the_bunny_has_five_holes():
    bunny = surface("stanford-bunny")
    assert len(boundary_loops(bunny)) == 5
    closed = sdf.close_holes(bunny.vertices, bunny.faces)
    mesh = sdf.Mesh(closed.vertices, closed.faces)
    source = torch.Generator().manual_seed(0)
    points = bunny.vertices[::1000] + 0.01 * bunny.diagonal * torch.randn(35, 3, generator=source, dtype=torch.float64)
    assert len(points) == 35
    # Solid angles in float64: a whole number to 1e-9 or so, for 69,674 faces.
    a, b, c = (closed.corners[None, :, i] - points[:, None] for i in range(3))
    la, lb, lc = a.norm(dim=2), b.norm(dim=2), c.norm(dim=2)
    divisor = la * lb * lc + (a * b).sum(2) * lc + (b * c).sum(2) * la + (c * a).sum(2) * lb
    angles = 2 * torch.atan2((a * torch.linalg.cross(b, c)).sum(2), divisor).sum(1) / (4 * torch.pi)
    assert float((angles - mesh.winding_number(points)).abs().max()) < 1e-6
    assert mesh.winding_number(points).unique().tolist() == [0, 1]


@pytest.mark.parametrize("name", ["cheburashka", "cow", "fandisk", "homer", "rocker-arm"])
def test_the_others_are_closed(name: str):
    one = surface(name)
    sdf.Mesh(one.vertices, one.faces)
