"""Points around surfaces: exact distances around meshes, estimates around clouds, and where they lie."""

import math

import pytest
import torch

from lipkit import sdf
from lipkit.errors import ArgumentError
from lipkit.sdf.surfaces.surface_samples import draw_around_mesh, draw_around_points
from support.meshes import box_distance, box_mesh

LOW, HIGH = (-1.0, 0.0, 2.0), (1.0, 3.0, 2.5)


def sphere_points(count: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.nn.functional.normalize(torch.randn(count, 3, generator=draw, dtype=torch.float64), dim=1)


def test_around_a_mesh_values_are_its_signed_distance():
    drawn = draw_around_mesh(sdf.Mesh(*box_mesh(LOW, HIGH)), 2000, seed=1)
    # Both are exact up to a few roundings of coordinates of size 3.
    assert torch.allclose(drawn.values, box_distance(drawn.points, LOW, HIGH), rtol=0, atol=1e-13)
    assert drawn.center.tolist() == [0.0, 1.5, 2.25]
    assert drawn.diagonal == pytest.approx(math.sqrt(4 + 9 + 0.25))


def test_points_lie_on_the_surface_near_it_and_all_around():
    drawn = draw_around_mesh(sdf.Mesh(*box_mesh(LOW, HIGH)), 4000, seed=1)
    size = drawn.values.abs() / drawn.diagonal
    # A fifth of 85 % lies on the surface, up to rounding, and another fifth within .2 % times a normal number.
    on_it = size < 1e-14
    assert int(on_it.sum()) == 680
    assert float((size < 0.006).double().mean()) > 0.4
    # Inside and outside are both there, also beyond the thin sides of the box.
    assert int((drawn.values[~on_it] > 0).sum()) > 400
    assert float(drawn.values.min()) < -0.1 * drawn.diagonal
    assert float(drawn.points[:, 2].min()) < 2 - 0.05 * drawn.diagonal
    assert float(drawn.points[:, 2].max()) > 2.5 + 0.05 * drawn.diagonal


def test_the_same_seed_draws_the_same_points_and_another_one_others():
    mesh = sdf.Mesh(*box_mesh(LOW, HIGH))
    first, again, other = (draw_around_mesh(mesh, 100, seed) for seed in (3, 3, 4))
    assert torch.equal(first.points, again.points)
    assert torch.equal(first.values, again.values)
    assert not bool((first.points == other.points).all(1).any())


def test_estimates_around_a_dense_cloud_are_near_the_distance():
    cloud = sphere_points(4000)
    drawn = draw_around_points(cloud, 3 * cloud, 5000, seed=0)
    truth = 1 - drawn.points.norm(dim=1)
    # Of 4,000 samples of a sphere the nearest is about (4 pi / 4000)^(1/2)/2 = .03 from a point of it, at most about
    # three times as far; the distance to it is sqrt(d^2 + .1^2) at most, and products with normals are off by .1^2.
    assert float((drawn.values - truth).abs().max()) < 0.1
    assert float((drawn.values - truth).abs().mean()) < 0.01
    far = truth.abs() > 0.05
    assert torch.equal(drawn.values[far] > 0, truth[far] > 0)


def test_turned_normals_turn_the_signs():
    cloud = sphere_points(500)
    outwards, inwards = (draw_around_points(cloud, sign * cloud, 1000, seed=0) for sign in (1, -1))
    assert torch.equal(outwards.points, inwards.points)
    assert torch.allclose(outwards.values, -inwards.values, rtol=0, atol=1e-15)


def test_the_majority_of_normals_decides():
    cloud = sphere_points(2000)
    normals = cloud.clone()
    normals[::20] *= -1
    drawn = draw_around_points(cloud, normals, 4000, seed=0)
    far = (1 - drawn.points.norm(dim=1)).abs() > 0.1
    # One of twenty normals is wrong, three of five only for one point of a thousand.
    wrong = (drawn.values > 0) != (drawn.points.norm(dim=1) < 1)
    assert float(wrong[far].double().mean()) < 0.01


def test_normals_of_length_zero_are_refused():
    cloud = sphere_points(10)
    normals = cloud.clone()
    normals[:3] = 0
    with pytest.raises(ArgumentError, match=r"3 of 10 normals are zero; leave those points out"):
        draw_around_points(cloud, normals, 100, seed=0)
