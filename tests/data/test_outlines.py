"""Regions and their signed distance, against closed forms, sampled boundaries and winding numbers."""

import math

import pytest
import torch
from torch import Tensor

from lipkit.data import Outline, snowflake, snowflake_ring
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

SQUARE = Outline((torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]], dtype=torch.float64),))
# A dozen roundings on numbers of the size of the region.
NEAR = 1e-14


def scattered(count: int, width: float, seed: int = 0) -> Tensor:
    shares = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * shares - 1) * width


def winding(corners: Tensor, points: Tensor) -> Tensor:
    """How often a polygon goes round each point, by adding up the angles of its edges."""
    towards = corners - points[:, None]
    onwards = towards.roll(-1, 1)
    cross = towards[..., 0] * onwards[..., 1] - towards[..., 1] * onwards[..., 0]
    return (torch.atan2(cross, (towards * onwards).sum(2)).sum(1) / (2 * math.pi)).round()


def test_a_square_has_the_distance_everyone_knows():
    points = scattered(2000, 2.5)
    beyond = points.abs() - 1
    truth = -(beyond.clamp(min=0).norm(dim=1) + beyond.amax(1).clamp(max=0))
    torch.testing.assert_close(SQUARE.signed_distance(points), truth, rtol=0, atol=NEAR)


def test_a_triangle_keeps_the_distance_of_its_three_sides():
    points = scattered(2000, 0.4)
    normals = torch.tensor([[0, -1], [math.sqrt(3) / 2, 0.5], [-math.sqrt(3) / 2, 0.5]], dtype=torch.float64)
    truth = (1 / (2 * math.sqrt(3)) - points @ normals.T).amin(1)
    found = snowflake(1.0, 0).signed_distance(points)
    assert torch.equal(found > 0, truth > 0)
    torch.testing.assert_close(found[truth > 0], truth[truth > 0], rtol=0, atol=NEAR)


@pytest.mark.parametrize("iterations", range(6))
def test_length_and_area_of_the_snowflake(iterations: int):
    side = 2.5
    (corners,) = snowflake(side, iterations).polygons
    starts, ends = snowflake(side, iterations).edges()
    assert len(corners) == len(starts) == 3 * 4**iterations
    lengths = (ends - starts).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, side / 3**iterations), rtol=1e-12, atol=0)
    area = 0.5 * float((starts[:, 0] * ends[:, 1] - starts[:, 1] * ends[:, 0]).sum())
    truth = math.sqrt(3) / 4 * side**2 * (1 + 3 / 5 * (1 - (4 / 9) ** iterations))
    assert area == pytest.approx(truth, rel=1e-13)
    assert float(corners.norm(dim=1).max()) == pytest.approx(side / math.sqrt(3), rel=1e-14)


@pytest.mark.parametrize("iterations", range(1, 6))
def test_the_middle_of_the_snowflake(iterations: int):
    middle = snowflake(6.0, iterations).signed_distance(torch.zeros(1, 2, dtype=torch.float64))
    assert float(middle) == pytest.approx(2, rel=1e-14)


def test_a_sixth_of_a_turn_changes_nothing():
    flake, points = snowflake(2.0, 4), scattered(500, 1.5)
    c, s = math.cos(math.pi / 3), math.sin(math.pi / 3)
    turned = points @ torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    torch.testing.assert_close(flake.signed_distance(points), flake.signed_distance(turned), rtol=0, atol=NEAR)


def test_the_distance_is_that_to_a_finely_sampled_boundary():
    flake, points = snowflake(1.0, 4), scattered(200, 0.8)
    starts, ends = flake.edges()
    pieces = 40
    shares = torch.linspace(0, 1, pieces + 1, dtype=torch.float64)[:, None, None]
    boundary = (starts + shares * (ends - starts)).reshape(-1, 2)
    sampled = torch.cdist(points, boundary, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    found = flake.signed_distance(points).abs()
    # The nearest sample is at most half a piece from the nearest point of the boundary.
    assert bool((found <= sampled + NEAR).all())
    assert bool((sampled <= found + 0.5 / 81 / pieces).all())


def test_inside_is_where_the_outline_goes_round():
    (corners,) = snowflake(1.0, 4).polygons
    points = scattered(1000, 0.7)
    found = snowflake(1.0, 4).contains(points)
    assert torch.equal(found, winding(corners, points) == 1)
    assert 0 < int(found.sum()) < len(points)


def test_a_ray_through_corners_counts_them_once():
    diamond = Outline((torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64),))
    heights = torch.tensor([[-2.0, 0], [-0.5, 0], [0.5, 0], [2, 0], [-2, 1], [-2, -1], [0.5, 1]], dtype=torch.float64)
    assert diamond.contains(heights).tolist() == [False, True, True, False, False, False, False]


def test_the_ring_lies_between():
    ring, points = snowflake_ring(), scattered(2000, 200)
    outer, inner = snowflake(348.0), snowflake(180.0)
    assert torch.equal(ring.contains(points), outer.contains(points) & ~inner.contains(points))
    truth = torch.minimum(outer.signed_distance(points), -inner.signed_distance(points))
    # Between disjoint boundaries the nearer one decides, on either side.
    torch.testing.assert_close(ring.signed_distance(points), truth, rtol=0, atol=200 * NEAR)
    middle = ring.signed_distance(torch.zeros(1, 2, dtype=torch.float64))
    assert float(middle) == pytest.approx(-60, rel=1e-14)


def test_the_distance_is_1_lipschitz_with_slope_1():
    ring, points = snowflake_ring(), scattered(1000, 200)
    steps = 1e-4 * torch.nn.functional.normalize(scattered(1000, 1, seed=1))
    change = (ring.signed_distance(points + steps) - ring.signed_distance(points)).abs()
    # Distances near 100 have roundings of 1e-13, 1e-9 of a step.
    assert float((change / 1e-4).max()) <= 1 + 1e-8
    x = points.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(ring.signed_distance(x).sum(), x)
    torch.testing.assert_close(slopes.norm(dim=1), torch.ones(1000, dtype=torch.float64), rtol=0, atol=1e-9)


def test_drawn_points_have_the_class_of_where_they_are():
    ring = snowflake_ring()
    found = ring.draw(5000, 200.0, seed=3)
    assert found.classes == ("outside", "inside")
    assert found.inputs.dtype == torch.float32
    assert float(found.inputs.abs().max()) <= 200
    assert torch.equal(found.labels == 1, ring.contains(found.inputs.double()))
    factor = 1 + 3 / 5 * (1 - (4 / 9) ** 4)
    # The tips of the outer one stick out of the square by less than a unit: 1e-5 of its area.
    share = math.sqrt(3) / 4 * (348**2 - 180**2) * factor / 400**2
    # Five deviations of a share of 5000 draws.
    assert float((found.labels == 1).double().mean()) == pytest.approx(share, abs=5 * 0.5 / math.sqrt(5000))
    assert torch.equal(found.inputs, ring.draw(5000, 200.0, seed=3).inputs)
    assert not torch.equal(found.inputs, ring.draw(5000, 200.0, seed=4).inputs)


def test_no_points_have_no_distances():
    assert SQUARE.signed_distance(torch.zeros(0, 2, dtype=torch.float64)).shape == (0,)


def test_nonsense_is_refused():
    with pytest.raises(ShapeError, match=r"at least 3 corners, got \[2\]"):
        Outline((torch.zeros(2, 2, dtype=torch.float64),))
    with pytest.raises(ShapeError, match="at least 3 corners"):
        Outline(())
    with pytest.raises(NonFiniteError, match="corners are NaN"):
        Outline((torch.full((3, 2), math.nan, dtype=torch.float64),))
    with pytest.raises(ArgumentError, match="leave out repeated corners"):
        Outline((torch.tensor([[0.0, 0], [0, 0], [1, 1]], dtype=torch.float64),))
    with pytest.raises(ArgumentError, match=r"positive and finite, got 0\.0"):
        snowflake(0.0)
    with pytest.raises(ArgumentError, match=r"Between 0 and 10 iterations .* got 11"):
        snowflake(1.0, 11)
    with pytest.raises(ArgumentError, match=r"must lie inside .* got 0\.6"):
        snowflake_ring(1.0, 0.6)
    with pytest.raises(ArgumentError, match="got count=0"):
        SQUARE.draw(0, 1.0, 0)
