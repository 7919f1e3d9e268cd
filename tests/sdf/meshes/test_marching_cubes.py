"""Extracted surfaces: closed, turned outwards, near the zero set, and blocks left out only where nothing is."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit import sdf
from lipkit.errors import ArgumentError, ShapeError
from lipkit.sdf.meshes.holes import boundary
from lipkit.sdf.meshes.marching_cubes import _grid_values
from support.meshes import box_mesh, tetrahedra

pytest.importorskip("skimage")
ONES = torch.ones(3)


def volume(surface: sdf.Triangles) -> float:
    """By the divergence theorem: positive if normals point outwards."""
    return float(torch.linalg.det(surface.corners).sum()) / 6


def test_a_ball_comes_back():
    ball = sdf.Sphere(torch.tensor([0.1, 0.0, -0.2]), 0.8)
    found = sdf.extract(ball, -ONES, torch.tensor([1.0, 1.1, 0.9]), 40)
    mesh = sdf.Mesh(found.vertices, found.faces)
    # A chord of a cell of 1/20 is h^2 / (8 r) from its circle: 4e-4, twice that across a cell.
    assert sdf.deviation(ball, mesh, 0.02).lower < 2e-3
    assert float((found.vertices - ball.center).norm(dim=1).sub(0.8).abs().max()) < 1e-3
    assert volume(found) == pytest.approx(4 / 3 * math.pi * 0.8**3, rel=5e-3)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(5, 40))
@settings(max_examples=15)
def test_signs_at_all_nodes_are_right(seed: int, resolution: int):
    source = torch.Generator().manual_seed(seed)
    field = sdf.Mesh(*tetrahedra(torch.rand(3, 4, 3, generator=source, dtype=torch.float64) * 2 - 1))
    cells = torch.tensor([resolution, max(1, resolution // 2), resolution + 3])
    step = 2 / cells
    values = _grid_values(field, -ONES.double(), step, cells)
    nodes = torch.stack(torch.meshgrid(*(torch.arange(int(c) + 1) for c in cells), indexing="ij"), 3).reshape(-1, 3)
    expected = field.measure(-1 + step * nodes)
    sure = expected.value.abs() > expected.error
    assert torch.equal(values.flatten().sign()[sure].double(), expected.value.sign()[sure])
    # Where neighbours differ in sign, the values are those of the field.
    assert float(values.abs().min()) > 0


def test_few_nodes_are_evaluated(monkeypatch: pytest.MonkeyPatch):
    count = 0
    ball = sdf.Sphere(torch.zeros(3), 0.7)

    measured, evaluated = sdf.Sphere.measure, sdf.Sphere.__call__

    def tallied(real: Callable[[sdf.Sphere, Tensor], Any]) -> Callable[[sdf.Sphere, Tensor], Any]:
        def call(self: sdf.Sphere, x: Tensor) -> Any:
            nonlocal count
            count += len(x)
            return real(self, x)

        return call

    monkeypatch.setattr(sdf.Sphere, "measure", tallied(measured))
    monkeypatch.setattr(sdf.Sphere, "__call__", tallied(evaluated))
    sdf.extract(ball, -ONES, ONES, 100)
    # Of a million nodes, those within two cells of the sphere: 4 pi .49 x 50^2 x 4 = 62,000, and the blocks around it.
    assert 15_000 < count < 250_000


def test_a_surface_that_leaves_the_box_is_open():
    found = sdf.extract(sdf.Sphere(torch.zeros(3), 1.0), torch.zeros(3), 2 * ONES, 16)
    with pytest.raises(ArgumentError, match="open"):
        sdf.Mesh(found.vertices, found.faces)
    # An eighth of the sphere.
    sides = found.corners[:, 1:] - found.corners[:, :1]
    area = torch.linalg.cross(sides[:, 0], sides[:, 1]).norm(dim=1).sum() / 2
    assert float(area) == pytest.approx(math.pi / 2, rel=0.02)


def test_nodes_on_the_zero_set_leave_it_closed():
    # All faces of the box are planes of the grid.
    box = sdf.Mesh(*box_mesh((-0.5, -0.5, -0.5), (0.5, 0.5, 0.5)))
    found = sdf.extract(box, -ONES, ONES, 32)
    sdf.Mesh(found.vertices, found.faces)
    # Cells cut the twelve edges off, half a square of 1/16 from each: 2.4 %.
    assert volume(found) == pytest.approx(1, rel=0.03)


@given(st.integers(0, 2**32))
@settings(max_examples=10)
def test_zero_sets_of_networks_end_at_the_box_only(seed: int):
    torch.manual_seed(seed)
    first = nn.Linear(3, 24)
    with torch.no_grad():
        first.weight *= 5
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(24, 1)).double()
    field = sdf.Network(model, torch.zeros(1, 3, dtype=torch.float64))
    values = field(torch.rand(2000, 3, dtype=torch.float64) * 2 - 1)
    if not float(values.min()) < 0 < float(values.max()):
        return
    found = sdf.extract(field, -ONES, ONES, 20)
    rim = found.vertices[boundary(found).flatten()]
    # Vertices are rounded to single precision.
    assert rim.numel() == 0 or float((rim.abs().amax(1) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("unit", [2.0**-120, 2.0**-100, 2.0**130, 2.0**190])
def test_units_beyond_single_precision_change_nothing(unit: float):
    ball = sdf.Sphere(torch.zeros(3), 0.6)
    found = sdf.extract(sdf.Scaled(ball, unit), -unit * ONES.double(), unit * ONES.double(), 12)
    expected = sdf.extract(ball, -ONES, ONES, 12)
    assert torch.equal(found.faces, expected.faces)
    # Units are powers of two, so nothing is rounded otherwise but the distances, in float64.
    assert float((found.vertices / unit - expected.vertices).abs().max()) < 1e-6


def test_bad_requests_are_refused():
    ball = sdf.Sphere(torch.zeros(3), 1.0)
    with pytest.raises(ArgumentError, match="negative at all nodes"):
        sdf.extract(ball, 2 * ONES, 3 * ONES, 10)
    with pytest.raises(ArgumentError, match="positive at all nodes"):
        sdf.extract(ball, -0.1 * ONES, 0.1 * ONES, 10)
    with pytest.raises(ArgumentError, match="low < high"):
        sdf.extract(ball, ONES, -ONES, 10)
    with pytest.raises(ArgumentError, match="resolution"):
        sdf.extract(ball, -ONES, ONES, 0)
    with pytest.raises(ShapeError, match="3 coordinates"):
        sdf.extract(sdf.Sphere(torch.zeros(2), 1.0), -ONES, ONES, 10)
