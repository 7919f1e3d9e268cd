"""The signed distance of a mesh: closed forms, exact fractions, solid angles, and its constant."""

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from support.meshes import box_distance, box_mesh, flat_and_thin, icosphere, signed_distance, tetrahedra
from support.unchecked import unchecked

Shape = Callable[[], tuple[Tensor, Tensor]]


def nested() -> tuple[Tensor, Tensor]:
    """A box in a box, both turned outwards: the inner one is inside twice."""
    (a, f), (b, g) = box_mesh((0, 0, 0), (4, 4, 4)), box_mesh((1, 1, 1), (2, 3, 3))
    return torch.cat([a, b]), torch.cat([f, g + len(a)])


def examples() -> dict[str, Shape]:
    """Closed meshes of several kinds."""
    return {
        "box": lambda: box_mesh((-1, -0.5, 0), (1, 0.7, 0.3)),
        "ball": lambda: icosphere(1),
        "nested": nested,
        "thin": flat_and_thin,
    }


@pytest.mark.parametrize("shape", examples().values(), ids=examples().keys())
def test_values_are_within_their_errors_of_exact_fractions(shape: Shape):
    vertices, faces = shape()
    mesh = sdf.Mesh(vertices, faces)
    source = torch.Generator().manual_seed(0)
    size, truth = mesh.triangles.diagonal, signed_distance(vertices, faces)
    points = vertices.mean(0) + torch.randn(12, 3, generator=source, dtype=torch.float64) * size / 4
    # Near the surface, where signs and small distances are hardest.
    corners = mesh.triangles.corners[torch.randint(len(faces), (12,), generator=source)]
    near = corners.mean(1) + torch.randn(12, 3, generator=source, dtype=torch.float64) * 1e-9
    points = torch.cat([points, near])
    found = mesh.measure(points)
    assert float(found.error.max()) <= 1e-12 * size
    for point, value, error in zip(points.tolist(), found.value.tolist(), found.error.tolist(), strict=True):
        with mpmath.workdps(40):
            assert abs(value - truth(point)) <= error


def test_a_box_has_its_closed_form_also_on_edges_and_diagonals():
    low, high = (0.0, 0.0, 0.0), (2.0, 1.0, 3.0)
    mesh = sdf.Mesh(*box_mesh(low, high))
    steps = [-1.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 3.5]
    points = torch.tensor(list(itertools.product(steps, repeat=3)), dtype=torch.float64)
    found = mesh.measure(points)
    assert bool(((found.value - box_distance(points, low, high)).abs() <= found.error).all())
    assert mesh.bound.kind is Kind.EXACT
    assert float(mesh.bound.value) == 1


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_it_is_1_lipschitz_whatever_intersects(seed: int):
    source = torch.Generator().manual_seed(seed)
    vertices, faces = tetrahedra(torch.randn(5, 4, 3, generator=source, dtype=torch.float64))
    mesh = sdf.Mesh(vertices, faces)
    x = torch.randn(400, 3, generator=source, dtype=torch.float64)
    y = x + torch.randn(400, 3, generator=source, dtype=torch.float64) * 10.0 ** -torch.arange(4).repeat(100)[:, None]
    a, b = mesh.measure(x), mesh.measure(y)
    # One rounding of the length on the right.
    assert bool(((a.value - b.value).abs() <= (x - y).norm(dim=1) * (1 + 1e-15) + a.error + b.error).all())


def test_it_is_positive_where_the_mesh_goes_around_at_all():
    mesh = sdf.Mesh(*nested())
    points = torch.tensor([[1.5, 2, 2], [3, 2, 2], [5, 2, 2]], dtype=torch.float64)
    assert mesh.winding_number(points).tolist() == [2, 1, 0]
    # The faces of the inner box are zeros, though both sides are inside.
    assert torch.allclose(mesh(points), torch.tensor([0.5, 1.0, -1.0]).double(), rtol=0, atol=1e-12)
    inwards = sdf.Mesh(mesh.vertices, mesh.faces.flip(1))
    assert inwards.winding_number(points).tolist() == [-2, -1, 0]
    assert torch.equal(inwards(points).sign(), mesh(points).sign())


def test_gradients_are_unit_vectors_and_slopes():
    mesh = sdf.Mesh(*icosphere(2))
    points = torch.randn(100, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slope = mesh.gradient(points)
    # Some roundings.
    assert torch.allclose(slope.norm(dim=1), torch.ones(100).double(), rtol=0, atol=1e-12)
    step = 1e-6
    along = (mesh(points + step * slope) - mesh(points - step * slope)) / (2 * step)
    # Along its gradient f grows by one a unit, up to rounding over the step; kinks of f are rarely met.
    assert int(((along - 1).abs() < 1e-8).sum()) >= 95
    assert torch.equal(mesh(points.clone().requires_grad_()).detach(), mesh(points))


def test_the_gradient_on_the_surface_points_inwards():
    vertices, faces = box_mesh((0, 0, 0), (1, 1, 1))
    on_it = torch.tensor([[0.25, 0.5, 0.0], [0.25, 0.5, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 0, 1], [0, 0, -1]], dtype=torch.float64)
    for mesh in (sdf.Mesh(vertices, faces), sdf.Mesh(vertices, faces.flip(1))):
        assert torch.allclose(mesh.gradient(on_it), expected, rtol=0, atol=1e-14)


def test_long_triangles_are_cut_and_counted_once():
    # Thousands of small faces beside a box of twelve large ones, which the tree cuts into pieces.
    (a, f), (b, g) = box_mesh((0, 0, 0), (50, 50, 1)), icosphere(3)
    b = b * 0.1 + torch.tensor([25.0, 25, 3])
    mesh = sdf.Mesh(torch.cat([a, b]), torch.cat([f, g + len(a)]))
    x = torch.rand(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = x * torch.tensor([60.0, 60, 2]) - torch.tensor([5.0, 5, 0.5])
    inside = box_distance(points, (0, 0, 0), (50, 50, 1)) > 0
    assert torch.equal(mesh.winding_number(points), inside.long())
    # Far from the ball, which only comes nearer than the box above z = 2 or so.
    assert torch.allclose(mesh(points), box_distance(points, (0, 0, 0), (50, 50, 1)), rtol=0, atol=1e-12)


def test_arrays_are_taken_as_tensors_are():
    vertices, faces = icosphere(1)
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    single = sdf.Mesh(vertices.numpy(), faces.numpy().astype(np.int32))
    assert torch.equal(single(points), sdf.Mesh(vertices, faces)(points))


def test_what_has_no_inside_is_refused():
    vertices, faces = box_mesh((0, 0, 0), (1, 1, 1))
    with pytest.raises(ArgumentError, match=r"open.* 3 edges in 1 loops .*close_holes"):
        sdf.Mesh(vertices, faces[1:])
    turned = faces.clone()
    turned[0] = turned[0].flip(0)
    with pytest.raises(ArgumentError, match=r"not oriented alike: 3 edges"):
        sdf.Mesh(vertices, turned)


def test_points_that_are_no_points_are_refused():
    mesh = sdf.Mesh(*icosphere(0))
    with pytest.raises(ShapeError):
        mesh(torch.zeros(4, 2))
    with pytest.raises(NonFiniteError):
        mesh(torch.full((1, 3), torch.nan))
    with pytest.raises(NonFiniteError, match="far out"):
        mesh(torch.full((1, 3), 1e200, dtype=torch.float64))
    assert mesh(torch.zeros(0, 3)).shape == (0,)


@given(st.integers(0, 2**32))
@settings(max_examples=10)
def test_trimesh_finds_the_same_distances(seed: int):
    triangles = pytest.importorskip("trimesh.triangles")
    mesh = sdf.Mesh(*icosphere(2))
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pairs = mesh.triangles.corners.repeat(len(points), 1, 1), points.repeat_interleave(len(mesh.faces), 0)
    nearest = torch.from_numpy(triangles.closest_point(pairs[0].numpy(), pairs[1].numpy()))
    expected = (nearest - pairs[1]).norm(dim=1).reshape(len(points), -1).amin(1)
    # Well-shaped triangles: both are right to some roundings.
    assert torch.allclose(mesh(points).abs(), expected, rtol=0, atol=1e-12)


def test_winding_numbers_are_of_finite_points_in_space():
    mesh = sdf.Mesh(*icosphere(1))
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        mesh.winding_number(torch.full((1, 3), math.nan))
    with unchecked(), pytest.raises(ShapeError, match=r"shape \(n, 3\)"):
        mesh.winding_number(torch.zeros(3))
    assert mesh.winding_number(torch.tensor([[0.0, 0, 0], [9, 0, 0]])).tolist() == [1, 0]


def test_arrays_may_run_backwards():
    vertices, faces = (one.numpy() for one in icosphere(1))
    found = sdf.Mesh(vertices[::-1], (len(vertices) - 1 - faces)[::-1])
    assert found.winding_number(torch.zeros(1, 3)).tolist() == [1]
