"""Distances to triangles of every shape, against exact fractions."""

import math

import mpmath
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lipkit.sdf.meshes.flat_triangles import FlatTriangles
from support.meshes import square_distance

number = st.one_of(
    st.floats(-10, 10), st.sampled_from([0.0, 1.0, -1.0, 1e-9, 1e-13, 1.0 + 2**-50]), st.floats(-1e-8, 1e-8)
)
point = st.tuples(number, number, number)
triangle = st.tuples(point, point, point)


def check(corners: tuple[tuple[float, ...], ...], q: tuple[float, ...]) -> float:
    """The computed distance, which is asserted to be as near to the true one as promised."""
    flat = FlatTriangles(torch.tensor([corners], dtype=torch.float64))
    points = torch.tensor([q], dtype=torch.float64)
    found = float(flat.squares(points, torch.tensor([0])).sqrt())
    exact = square_distance(q, corners)
    with mpmath.workdps(40):
        true = mpmath.sqrt(mpmath.mpf(exact.numerator) / exact.denominator)
        assert abs(found - true) <= flat.relative * found + flat.absolute
    return found


@given(triangle, point)
# Beyond the tip of a needle: outside of both long edges by less than their rounding.
@example(((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.5, 1e-10, 0.0)), (1.0 + 1e-7, 1e-18, 0.0))
# Just above a triangle whose height is below the rounding of its length.
@example(((0.0, 0.0, 0.0), (3.0, 1.0, 2.0), (1.5, 0.5, 1.0 + 2**-52)), (1.5, 0.5 + 1e-9, 1.0))
@example(((1.0, 1.0, 1.0),) * 3, (1.0, 1.0, 1.0))
@example(((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 2.0, 3.0)), (0.1, 0.2, 0.3))
def test_a_distance_is_within_its_error(corners: tuple[tuple[float, ...], ...], q: tuple[float, ...]):
    check(corners, q)


@given(triangle, st.floats(0, 1), st.floats(0, 1))
def test_points_of_a_triangle_are_at_no_distance(corners: tuple[tuple[float, ...], ...], r: float, t: float):
    a, b, c = torch.tensor(corners, dtype=torch.float64)
    q = (1 - r) * a + r * (1 - t) * b + r * t * c
    # The point is rounded a few times itself: 8 units of coordinates up to 10.
    assert check(corners, tuple(q.tolist())) <= 1e-13


@given(triangle, point, st.sampled_from([2.0**-150, 2.0**150]))
def test_scales_do_not_matter(corners: tuple[tuple[float, ...], ...], q: tuple[float, ...], scale: float):
    check(tuple(tuple(scale * x for x in row) for row in corners), tuple(scale * x for x in q))


def test_errors_are_a_few_roundings():
    torch.manual_seed(0)
    flat = FlatTriangles(torch.randn(200, 3, 3, dtype=torch.float64))
    # Triangles of length 5 or so: a hundredfold of the rounding of one number of that size.
    assert flat.relative <= 400 * 2**-53
    assert flat.absolute <= 10 * 400 * 2**-53


def test_an_offset_of_the_whole_scene_costs_nothing():
    # Exact moves: coordinates are multiples of 2^-20, and stay so at 2^30.
    torch.manual_seed(0)
    corners = (torch.randn(50, 3, 3, dtype=torch.float64) * 2**20).round() / 2**20
    points = (torch.randn(50, 3, dtype=torch.float64) * 2**20).round() / 2**20
    faces = torch.arange(50)
    here, there = FlatTriangles(corners), FlatTriangles(corners + 2.0**30)
    assert torch.equal(here.squares(points, faces), there.squares(points + 2.0**30, faces))
    assert here.absolute == there.absolute


def test_directions_point_away_from_the_nearest_point():
    corners = torch.tensor([[[0.0, 0, 0], [2, 0, 0], [0, 1, 0]]], dtype=torch.float64)
    points = torch.tensor([[0.5, 0.25, 3], [0.5, 0.25, -3], [3, 0, 0], [-1, -1, 0]]).double()
    flat, faces = FlatTriangles(corners), torch.zeros(4, dtype=torch.int64)
    root = math.sqrt(0.5)
    expected = torch.tensor([[0, 0, 1.0], [0, 0, -1], [1, 0, 0], [-root, -root, 0]], dtype=torch.float64)
    # Some roundings of coordinates up to 4.
    assert torch.allclose(flat.directions(points, faces), expected, rtol=0, atol=4e-15)
    assert torch.allclose(flat.normals(faces[:1]), torch.tensor([[0.0, 0, 1]]).double(), rtol=0, atol=4e-15)
