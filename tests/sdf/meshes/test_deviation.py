"""The largest |f| on a surface: closed forms, and samples that are a hundred times denser."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lipkit import sdf
from lipkit.errors import ArgumentError, ShapeError
from support.meshes import box_mesh, icosphere, octahedron, tetrahedra
from support.unchecked import unchecked

BALL = sdf.Sphere(torch.zeros(3), 1.0)


@pytest.mark.parametrize("tolerance", [0.1, 1e-3, 1e-4])
def test_an_octahedron_and_its_sphere(tolerance: float):
    found = sdf.deviation(BALL, sdf.Mesh(*octahedron()), tolerance)
    # The middle of each face is at 1/sqrt 3 from the center.
    truth = 1 - 1 / math.sqrt(3)
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower <= tolerance
    assert found.reached


def test_a_box_and_a_ball_around_a_corner():
    far = sdf.deviation(sdf.Sphere(torch.tensor([1.0, 2.0, 3.0]), 0.5), sdf.Mesh(*box_mesh((0, 0, 0), (1, 2, 3))), 1e-3)
    # The opposite corner is the farthest point, on the outside.
    assert far.lower <= math.sqrt(14) - 0.5 <= far.upper
    assert far.reached


@given(st.integers(0, 2**32))
@settings(max_examples=5)
def test_no_sample_is_above_or_beats_the_lower_end(seed: int):
    source = torch.Generator().manual_seed(seed)
    vertices, faces = tetrahedra(torch.randn(2, 4, 3, generator=source, dtype=torch.float64))
    mesh = sdf.Mesh(vertices, faces)
    field = sdf.Mesh(*icosphere(1))
    found = sdf.deviation(field, mesh, 0.1)
    assert found.reached
    dense = sdf.sample_surface(mesh, 10_000, seed % 1000)
    readings = field.measure(torch.cat([dense, vertices]))
    assert float((readings.value.abs() - readings.error).max()) <= found.upper
    # The lower end is the value at some point of the surface, and samples come as near as their spacing.
    assert float(readings.value.abs().max()) >= found.lower - 0.2


def test_a_network_is_below_a_hundred_times_as_many_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    field = sdf.Network(model, torch.zeros(1, 3, dtype=torch.float64))
    mesh = sdf.Mesh(*icosphere(1))
    found = sdf.deviation(field, mesh, 0.05)
    # A hundred times as many points as were evaluated.
    assert found.evaluations < 3000
    dense = field(sdf.sample_surface(mesh, 100 * found.evaluations)).abs()
    assert float(dense.max()) <= found.upper
    assert found.lower - 0.05 <= float(dense.max())


def test_a_budget_that_ends_leaves_ends_that_hold():
    mesh = sdf.Mesh(*octahedron())
    found = sdf.deviation(BALL, mesh, 1e-9, evaluations=5000)
    assert found.lower <= 1 - 1 / math.sqrt(3) <= found.upper
    assert not found.reached
    assert found.evaluations <= 5000
    none = sdf.deviation(BALL, mesh, 1e-9, evaluations=0)
    assert none.evaluations == 8
    assert none.lower <= 1 - 1 / math.sqrt(3) <= none.upper


def test_a_tolerance_below_float64_ends_all_the_same():
    # A point of a surface, enlarged a million times beside its coordinates: nothing is left to cut after some halvings.
    corner = torch.tensor([2.0**30, 0, 0], dtype=torch.float64)
    vertices, faces = octahedron()
    found = sdf.deviation(sdf.Sphere(corner, 1.0), sdf.Triangles(corner + vertices, faces), 1e-30, evaluations=20_000)
    assert found.lower <= 1 - 1 / math.sqrt(3) <= found.upper
    assert not found.reached


def test_open_surfaces_have_a_largest_value_too():
    vertices, faces = octahedron()
    found = sdf.deviation(BALL, sdf.Triangles(vertices, faces[:1]), 1e-3)
    assert found.lower <= 1 - 1 / math.sqrt(3) <= found.upper


def test_bad_requests_are_refused():
    mesh = sdf.Mesh(*octahedron())
    for tolerance in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="tolerance"):
            sdf.deviation(BALL, mesh, tolerance)
    with pytest.raises(ShapeError, match="2 coordinates"):
        sdf.deviation(sdf.Sphere(torch.zeros(2), 1.0), mesh, 0.1)


def test_a_tensor_is_no_surface():
    with unchecked(), pytest.raises(ArgumentError, match=r"an sdf\.Mesh or sdf\.Triangles, got Tensor"):
        sdf.deviation(BALL, octahedron()[0], 0.1)  # pyright: ignore[reportArgumentType]
    with unchecked(), pytest.raises(ArgumentError, match="evaluations is a whole number"):
        sdf.deviation(BALL, sdf.Mesh(*octahedron()), 0.1, 2.5)  # pyright: ignore[reportArgumentType]
