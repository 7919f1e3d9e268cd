"""Winding numbers by crossings of a ray, against solid angles, also where rays meet edges and vertices."""

import itertools
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.sdf.meshes.crossings import _side, crossings
from support.meshes import box_mesh, icosphere, octahedron, square_distance, tetrahedra, winding_number

whole = st.integers(-2, 2).map(float)
corner = st.tuples(whole, whole, whole)


def count(points: Tensor, corners: Tensor) -> Tensor:
    """The sum of the crossings of each point over all triangles."""
    pairs = len(points), len(corners)
    return (
        crossings(
            points[:, None].expand(*pairs, 3).reshape(-1, 3), corners[None].expand(*pairs, 3, 3).reshape(-1, 3, 3)
        )
        .reshape(pairs)
        .sum(1)
    )


def test_rays_through_edges_and_vertices_of_a_box():
    vertices, faces = box_mesh((0, 0, 0), (2, 2, 2))
    steps = [-0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    points = torch.tensor(list(itertools.product(steps, steps, [-0.5, 0.5, 1.0, 2.5])), dtype=torch.float64)
    inside = ((points > 0) & (points < 2)).all(1)
    off = inside | ((points < 0) | (points > 2)).any(1)
    assert torch.equal(count(points, vertices[faces])[off], inside[off].long())


@given(st.lists(st.tuples(corner, corner, corner, corner), min_size=1, max_size=5), corner)
@settings(max_examples=200)
def test_whole_numbers_give_every_degeneracy(rows: list[tuple[tuple[float, ...], ...]], q: tuple[float, ...]):
    vertices, faces = tetrahedra(torch.tensor(rows, dtype=torch.float64))
    corners = vertices[faces]
    if min(square_distance(q, triangle) for triangle in corners.tolist()) == 0:
        return
    found = int(count(torch.tensor([q], dtype=torch.float64), corners))
    # Both are whole numbers; 40 digits of solid angles are near enough.
    assert abs(found - winding_number(q, corners)) < 1e-20


@given(st.integers(0, 2**32), st.sampled_from([1.0, 1e-7, 1e5]))
@settings(max_examples=30)
def test_random_soups(seed: int, height: float):
    source = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 1.0, height], dtype=torch.float64)
    vertices, faces = tetrahedra(torch.randn(4, 4, 3, generator=source, dtype=torch.float64) * scale)
    points = torch.randn(5, 3, generator=source, dtype=torch.float64) * scale / 2
    expected = [round(float(winding_number(q, vertices[faces]))) for q in points.tolist()]
    assert count(points, vertices[faces]).tolist() == expected


def test_points_that_differ_by_one_rounding_are_told_apart():
    vertices, faces = octahedron()
    # On the face x + y + z = 1 with x = y: the last numbers below and above it, and float64 sums that cannot tell.
    below = torch.nextafter(torch.tensor(0.5).double(), torch.tensor(0.0).double())
    above = torch.nextafter(torch.tensor(0.5).double(), torch.tensor(1.0).double())
    points = torch.tensor([[0.25, 0.25, float(below)], [0.25, 0.25, float(above)]], dtype=torch.float64)
    assert count(points, vertices[faces]).tolist() == [1, 0]


def test_a_convex_solid_contains_what_is_behind_all_of_its_faces():
    vertices, faces = icosphere(2)
    corners = vertices[faces]
    points = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.7
    normals = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    behind = ((points[:, None] - corners[None, :, 0]) * normals).sum(2) < 0
    assert torch.equal(count(points, corners), behind.all(1).long())


odd = st.sampled_from([1 / 3, 0.1, 2.0**-30, 1 + 2.0**-52, 3.0, -0.7, 0.0, 1e9])


@given(st.lists(st.tuples(odd, odd, odd), min_size=3, max_size=3))
@settings(max_examples=300)
def test_sides_are_those_of_fractions(rows: list[tuple[float, ...]]):
    q, a, b = rows
    found = _side(*(torch.tensor([row], dtype=torch.float64) for row in rows))
    (qx, qy), (ax, ay), (bx, by) = ([Fraction(number) for number in row[:2]] for row in (q, a, b))
    terms = ((ax - qx) * (by - qy) - (ay - qy) * (bx - qx), ay - by, bx - ax)
    assert int(found) == next(((term > 0) - (term < 0) for term in terms if term), 0)
