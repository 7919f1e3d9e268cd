"""The meshes that everyone knows, where a folder has them."""

import os
from pathlib import Path

import pytest
import torch

from lipkit import sdf
from lipkit.sdf.meshes.holes import boundary_loops
from support.meshes import winding_number


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
    points = bunny.vertices[::5000] + 0.01 * bunny.diagonal * torch.randn(len(bunny.vertices[::5000]), 3).double()
    expected = [round(float(winding_number(q, closed.corners[::1]))) for q in points[:1].tolist()]
    assert mesh.winding_number(points[:1]).tolist() == expected


@pytest.mark.parametrize("name", ["cheburashka", "cow", "fandisk", "homer", "rocker-arm"])
def test_the_others_are_closed(name: str):
    one = surface(name)
    sdf.Mesh(one.vertices, one.faces)
