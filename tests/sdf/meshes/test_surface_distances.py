"""Samples of surfaces and distances between them, against closed forms and laws of areas."""

import pytest
import torch

from lipkit import sdf
from lipkit.errors import ArgumentError
from support.meshes import box_mesh, icosphere, octahedron


def test_samples_are_uniform_by_area():
    mesh = sdf.Mesh(*box_mesh((0, 0, 0), (1, 2, 3)))
    points = sdf.sample_surface(mesh, 50_000, seed=1)
    assert float(mesh(points[:2000]).abs().max()) < 1e-14
    # Sides have areas 6, 6, 3, 3, 2, 2 of 22; five standard deviations of a share are 0.01.
    for axis, side in ((0, 6), (1, 3), (2, 2)):
        for wall in (0.0, (1.0, 2.0, 3.0)[axis]):
            share = float(((points[:, axis] - wall).abs() < 1e-12).double().mean())
            assert abs(share - side / 22) < 0.01
    on_top = points[(points[:, 2] - 3).abs() < 1e-12]
    # Uniform on the rectangle: means 1/2 and 1, five standard errors of 4,500 points.
    assert torch.allclose(on_top[:, :2].mean(0), torch.tensor([0.5, 1.0]).double(), rtol=0, atol=0.05)
    assert float((on_top[:, 0] < 0.25).double().mean()) == pytest.approx(0.25, abs=0.04)
    assert torch.equal(points, sdf.sample_surface(mesh, 50_000, seed=1))
    assert not torch.equal(points, sdf.sample_surface(mesh, 50_000, seed=2))


def test_faces_without_area_are_never_drawn():
    vertices, faces = octahedron()
    flat = torch.tensor([[0, 0, 1], [3, 3, 3]])
    surface = sdf.Triangles(vertices, torch.cat([flat, faces[:1], flat]))
    points = sdf.sample_surface(surface, 1000)
    assert float((points.sum(1) - 1).abs().max()) < 1e-14
    with pytest.raises(ArgumentError, match="no area"):
        sdf.sample_surface(sdf.Triangles(vertices, flat), 10)
    with pytest.raises(ArgumentError, match="number of points"):
        sdf.sample_surface(surface, 0)


def test_two_boxes_one_in_the_other():
    inner, outer = sdf.Mesh(*box_mesh((1, 1, 1), (2, 2, 2))), sdf.Mesh(*box_mesh((0, 0, 0), (3, 3, 3)))
    found = sdf.surface_distances(inner, outer, 20_000)
    # From inside all points are at distance 1; from outside corners are farthest, at sqrt 3.
    assert found.forth.mean == pytest.approx(1, abs=1e-12)
    assert found.forth.standard_error < 1e-12
    assert 1.6 < found.hausdorff <= 3**0.5
    # Midpoints of a grid over one outer square: the distance to the inner square above it.
    grid = (torch.arange(300).double() + 0.5) / 100
    beyond = torch.maximum(1 - grid, grid - 2).clamp(min=0) ** 2
    mean = float((1 + beyond[:, None] + beyond[None, :]).sqrt().mean())
    assert abs(found.back.mean - mean) < 6 * found.back.standard_error + 1e-4
    assert found.chamfer == (found.forth.mean + found.back.mean) / 2
    proven = sdf.hausdorff(inner, outer, 0.1)
    assert proven.lower <= 3**0.5 <= proven.upper
    assert proven.reached


def test_a_sphere_and_its_octahedron():
    ball = sdf.Sphere(torch.zeros(3), 1.0)
    mesh = sdf.Mesh(*octahedron())
    found = sdf.mean_deviation(ball, mesh, 50_000)
    # Midpoints of a fine lattice on one face.
    n = 400
    i, j = torch.meshgrid(torch.arange(n).double(), torch.arange(n).double(), indexing="ij")
    inside = i + j < n - 1
    face = torch.stack([i[inside] + 1 / 3, j[inside] + 1 / 3, n - i[inside] - j[inside] - 2 / 3], 1) / n
    expected = float((1 - face.norm(dim=1)).mean())
    assert abs(found.mean - expected) < 5 * found.standard_error + 1e-3
    assert 0 < found.standard_error < 1e-3


def test_open_surfaces_have_distances_too():
    vertices, faces = icosphere(2)
    half = faces[(vertices[faces][:, :, 2] >= 0).all(1)]
    found = sdf.surface_distances(sdf.Triangles(vertices, half), sdf.Triangles(vertices, faces), 2000)
    assert found.forth.mean < 1e-14
    # The south pole to the equator.
    assert 1.3 < found.hausdorff <= 2**0.5
