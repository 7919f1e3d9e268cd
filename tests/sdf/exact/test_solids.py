"""Balls, half-spaces and boxes: distances by projection, one step to the boundary, conventions, bad input."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked

SOLIDS: list[sdf.Field] = [
    sdf.Sphere(torch.tensor([0.5, -1.0, 0.0]), 1.2),
    sdf.HalfSpace(torch.tensor([1.0, -2.0, 0.5]), 0.3),
    sdf.Box(torch.tensor([-1.0, -0.5, -2.0]), torch.tensor([1.0, 0.7, 0.1])),
]
solids = pytest.mark.parametrize("field", SOLIDS, ids=lambda one: type(one).__name__)
COORDINATE = st.floats(-1e6, 1e6)


def test_inside_is_positive() -> None:
    origin = torch.zeros(1, 2)
    assert float(sdf.Sphere(torch.zeros(2), 2.0)(origin)) == 2
    # The normal points out of the half-space.
    up = torch.tensor([0.0, 3.0])
    assert float(sdf.HalfSpace(up, 6.0)(origin)) == 2
    assert float(sdf.HalfSpace(up, 6.0)(torch.tensor([[0.0, 5.0]]))) == -3
    assert float(sdf.Box(torch.tensor([-1.0, -3.0]), torch.tensor([2.0, 4.0]))(origin)) == 1
    assert float(sdf.Box(torch.tensor([-1.0, -3.0]), torch.tensor([2.0, 4.0]))(torch.tensor([[5.0, 8.0]]))) == -5


@solids
def test_one_step_reaches_the_boundary(field: sdf.Field) -> None:
    """The strongest attack on a signed distance is x - f(x) grad f(x), and no shorter move changes the sign."""
    x = 2 * torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, gradient = field(x), field.gradient(x)
    assert torch.allclose(gradient.norm(dim=1), torch.ones(300, dtype=torch.float64), atol=1e-12)
    # A few roundings of numbers below ten.
    assert float(field(x - value[:, None] * gradient).abs().max()) < 1e-13
    beyond = field(x - 1.001 * value[:, None] * gradient)
    assert bool((beyond * value < 0).all())
    moves = torch.nn.functional.normalize(torch.randn(200, 3, dtype=torch.float64), dim=1)
    for row, size in zip(x[:40], value[:40], strict=True):
        assert bool((field(row + 0.999 * size.abs() * moves) * size > 0).all())


@given(center=st.tuples(COORDINATE, COORDINATE), radius=st.floats(1e-3, 1e3), x=st.tuples(COORDINATE, COORDINATE))
def test_the_distance_of_a_ball_by_hypot(center: tuple[float, float], radius: float, x: tuple[float, float]) -> None:
    found = sdf.Sphere(torch.tensor(center, dtype=torch.float64), radius).measure(
        torch.tensor([x], dtype=torch.float64)
    )
    truth = radius - math.dist(center, x)
    # math.dist is within a unit in the last place.
    assert abs(float(found.value) - truth) <= float(found.error) + 2.0**-51 * (radius + math.dist(center, x))


def test_the_distance_of_a_box_by_projection() -> None:
    low, high = torch.tensor([-1.0, -0.5, -2.0]).double(), torch.tensor([1.0, 0.7, 0.1]).double()
    x = 2 * torch.randn(500, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nearest = torch.minimum(torch.maximum(x, low), high)
    walls = torch.cat([x - low, high - x], 1).amin(1)
    truth = torch.where((nearest == x).all(1), walls, -(x - nearest).norm(dim=1))
    found = sdf.Box(low, high).measure(x)
    # The projection rounds as often as the field.
    assert bool(((found.value - truth).abs() <= 2 * found.error).all())


@pytest.mark.parametrize("scale", [5e-324, 1e-200, 1e-30, 1e30, 1e200])
def test_the_length_of_a_normal_does_not_matter(scale: float) -> None:
    normal = torch.tensor([3.0, 4.0], dtype=torch.float64)
    # Of subnormal numbers only small multiples are exact.
    found = sdf.HalfSpace(normal * scale, 5 * scale).measure(torch.tensor([[2.0, 1.0]], dtype=torch.float64))
    assert abs(float(found.value) + 1) <= float(found.error) < 1e-14


@solids
def test_they_are_exact(field: sdf.Field) -> None:
    assert field.bound.kind is Kind.EXACT
    assert constant_of(field) == 1.0


def test_what_is_no_solid_is_refused() -> None:
    two, three = torch.zeros(2), torch.zeros(3)
    for radius in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="radius"):
            sdf.Sphere(two, radius)
    with pytest.raises(ArgumentError, match="zero"):
        sdf.HalfSpace(two, 1.0)
    with pytest.raises(NonFiniteError, match="offset"):
        sdf.HalfSpace(two + 1, math.inf)
    with pytest.raises(NonFiniteError, match="offset"):
        sdf.HalfSpace(two + 1e-38, 1e300)
    with unchecked(), pytest.raises(ShapeError, match="2 and 3"):
        sdf.Box(two, three)
    with pytest.raises(ArgumentError, match="coordinate 1"):
        sdf.Box(two, torch.tensor([1.0, 0.0]))
    with pytest.raises(NonFiniteError, match="center"):
        sdf.Sphere(two + torch.nan, 1.0)
