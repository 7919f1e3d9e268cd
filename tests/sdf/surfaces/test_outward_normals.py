"""Sides of points without normals: against normals in closed form, in several dimensions, and what is refused."""

import math

import pytest
import torch

from lipkit.errors import ArgumentError
from lipkit.sdf.surfaces.outward_normals import outward_normals


def unit(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=draw, dtype=torch.float64), dim=1)


def torus(count: int, radius: float) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    u, v = (2 * math.pi * torch.rand(2, count, generator=draw, dtype=torch.float64)).unbind()
    ring = torch.stack([u.cos(), u.sin(), torch.zeros_like(u)], 1)
    normals = v.cos()[:, None] * ring + v.sin()[:, None] * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    return ring + radius * normals, normals


def test_a_sphere_in_any_dimension_gets_its_normals():
    for dim, count in ((2, 100), (3, 500), (4, 800)):
        cloud = unit(count, dim)
        found = outward_normals(3 * cloud + 7, seed=0)
        cosine = (found * cloud).sum(1)
        assert torch.allclose(found.norm(dim=1), torch.ones(count, dtype=torch.float64), rtol=0, atol=1e-12)
        # Planes through neighbours within .5 of a point are tilted by less than that.
        assert float(cosine.min()) > 0.8
        assert float(cosine.mean()) > 0.98


def test_the_inner_side_of_a_ring_is_outside():
    # A torus is not convex: half of its normals point towards the middle.
    cloud, normals = torus(800, 0.4)
    assert float(((outward_normals(cloud, seed=0) * normals).sum(1) > 0).double().mean()) == 1


def test_a_cavity_is_outside():
    outer, inner = unit(600, 3), unit(300, 3, seed=1)
    found = outward_normals(torch.cat([outer, 0.5 * inner]), seed=0)
    assert bool(((found * torch.cat([outer, -inner])).sum(1) > 0).all())


def test_clouds_larger_than_the_system_take_the_side_of_their_neighbours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lipkit.sdf.surfaces.outward_normals._SYSTEM", 200)
    cloud = unit(1000, 3)
    assert bool(((outward_normals(cloud, seed=0) * cloud).sum(1) > 0).all())


def test_copies_of_points_and_units_change_nothing():
    cloud = unit(300, 3)
    once = outward_normals(cloud, seed=0)
    assert torch.equal(outward_normals(cloud.repeat(12, 1), seed=0), once.repeat(12, 1))
    # A power of two keeps all bits.
    assert torch.equal(outward_normals(2.0**200 * cloud, seed=0), once)


def test_points_without_two_sides_are_refused():
    draw = torch.Generator().manual_seed(0)
    filled = torch.randn(500, 3, generator=draw, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"do not tell inside from outside: \d+% of neighbours"):
        outward_normals(filled, seed=0)
    flat = torch.cat([filled[:, :2], torch.zeros(500, 1, dtype=torch.float64)], 1)
    with pytest.raises(ArgumentError, match="do not tell inside from outside"):
        outward_normals(flat, seed=0)


def test_a_part_of_a_surface_is_refused():
    cloud = unit(1000, 3)
    # The normals of half a sphere sum to pi of an area of 2 pi.
    with pytest.raises(
        ArgumentError, match=r"look like a part of a surface: their normals sum to (4|5)\d% of its area"
    ):
        outward_normals(cloud[cloud[:, 2] > 0], seed=0)
