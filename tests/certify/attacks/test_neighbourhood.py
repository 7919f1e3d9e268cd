"""Projection to a ball cut by a box, against quadratic programming and exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from lipkit.certify.attacks import Neighbourhood
from lipkit.errors import ArgumentError, ShapeError

NORMS = (1.0, 2.0, math.inf)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def exactly_inside(near: Neighbourhood, points: Tensor) -> bool:
    """Membership in rational arithmetic: no rounding on either side."""
    for x, z, radius in zip(
        near.center.flatten(1).tolist(), points.flatten(1).tolist(), near.radius.tolist(), strict=True
    ):
        moves = [abs(Fraction(b) - Fraction(a)) for a, b in zip(x, z, strict=True)]
        r = Fraction(radius)
        fits = {1.0: sum(moves) <= r, 2.0: sum(m * m for m in moves) <= r * r, math.inf: max(moves) <= r}[near.p]
        if not (fits and all(near.low <= b <= near.high for b in z)):
            return False
    return True


@given(
    st.sampled_from(NORMS),
    st.sampled_from(DTYPES),
    st.integers(1, 40),
    st.sampled_from([1e-7, 1e-3, 0.1, 0.5, 3.0, 1e3]),
    st.booleans(),
    st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_what_is_stored_is_inside_in_exact_arithmetic(
    norm: float, dtype: torch.dtype, size: int, radius: float, boxed: bool, seed: int
):
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(3, size, generator=source).to(dtype)
    box = (0.0, 1.0) if boxed else (-math.inf, math.inf)
    near = Neighbourhood(x, torch.full((3,), radius, dtype=torch.float64), norm, *box)
    points = x.double() + 3 * radius * torch.randn(3, size, generator=source, dtype=torch.float64)
    found = near.project(points)
    assert found.dtype == dtype
    assert exactly_inside(near, found)
    assert bool(near.contains(found).all())
    # Points that are inside stay, up to rounding towards the center by one unit of the dtype.
    again = near.project(found)
    assert bool(((again.double() - found.double()).abs() <= 4 * torch.finfo(dtype).eps * (1 + 4 * radius)).all())


@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("boxed", [False, True])
def test_the_projection_is_the_nearest_point(norm: float, boxed: bool):
    rng = np.random.default_rng(0)
    for _ in range(6):
        x, point = rng.uniform(0, 1, 4), rng.uniform(-1, 2, 4)
        low, high = (0.0, 1.0) if boxed else (-1e3, 1e3)
        near = Neighbourhood(torch.tensor(x)[None], torch.tensor([0.6], dtype=torch.float64), norm, low, high)
        found = near.project(torch.tensor(point)[None])[0].numpy()
        # With positive and negative parts the l1 ball is a polytope, so that a smooth solver can be used for both.
        if norm == 2.0:
            inside = {"type": "ineq", "fun": lambda z: 0.36 - ((z[:4] - z[4:]) ** 2).sum()}
        else:
            inside = {"type": "ineq", "fun": lambda z: 0.6 - z.sum()}
        best = minimize(
            lambda z, x=x, point=point: ((x + z[:4] - z[4:] - point) ** 2).sum(),
            np.full(8, 0.01),
            bounds=[(0, 1e3)] * 8,
            constraints=[
                inside,
                {"type": "ineq", "fun": lambda z, x=x, high=high: high - x - z[:4] + z[4:]},
                {"type": "ineq", "fun": lambda z, x=x, low=low: x + z[:4] - z[4:] - low},
            ],
            options={"ftol": 1e-14, "maxiter": 500},
        )
        expected = x + best.x[:4] - best.x[4:]
        # Accuracy of the general solver, not ours.
        assert np.allclose(found, expected, atol=2e-5)
        assert ((found - point) ** 2).sum() <= ((expected - point) ** 2).sum() + 1e-8


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.0, 5e-324, 1e-310, 1e-200, 1e-170, 1e-30, 1e200, 1.7e308])
@pytest.mark.parametrize("boxed", [False, True])
def test_radii_whose_square_is_no_float_keep_their_ball(norm: float, radius: float, boxed: bool):
    source = torch.Generator().manual_seed(0)
    # Only around 0 are there floats nearby: in float64 down to the smallest of all, in float32 to 1.4e-45.
    x = torch.zeros(2, 6, dtype=torch.float64)
    x[1, :2] = 0.5
    box = (0.0, 1.0) if boxed else (-math.inf, math.inf)
    for dtype in (torch.float64, torch.float32):
        near = Neighbourhood(x.to(dtype), torch.full((2,), radius, dtype=torch.float64), norm, *box)
        for far in (radius * 3, 1.0, 1e300, math.inf):
            found = near.project(x + far * torch.randn(2, 6, generator=source, dtype=torch.float64))
            assert bool(torch.isfinite(found).all())
            assert exactly_inside(near, found)
            assert bool(near.contains(found).all())
            outside = near.distance(found) > radius * (1 + 1e-12) + 5e-324
            assert not bool(outside.any())
    assert not bool(near.contains(torch.full_like(x, max(2 * radius, 5e-324)))[0])


def test_a_point_far_away_comes_back_to_the_surface_and_not_to_the_center():
    # The box cuts the ball, and the share of the offset that fits is 1e-200.
    near = Neighbourhood(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64), 2.0, 0.0, 2.0)
    found = near.project(torch.tensor([[1e200, -1e200]], dtype=torch.float64))
    # The room that is kept free for the rounding of lengths is 4 (2 + 8) 2^-52.
    assert found.tolist() == [[pytest.approx(1.0, abs=1e-13), 0.0]]


def test_a_radius_of_zero_gives_the_input():
    x = torch.rand(2, 5)
    near = Neighbourhood(x, torch.zeros(2, dtype=torch.float64))
    assert torch.equal(near.project(x + 1), x)


def test_a_box_that_the_inputs_leave_is_refused():
    with pytest.raises(ArgumentError, match="outside of the box"):
        Neighbourhood(torch.full((1, 2), 1.5), torch.ones(1, dtype=torch.float64), 2.0, 0.0, 1.0)
    with pytest.raises(ArgumentError, match="finite inputs"):
        Neighbourhood(torch.full((1, 2), math.nan), torch.ones(1, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="finite number >= 0"):
        Neighbourhood(torch.ones(1, 2), torch.full((1,), -1.0, dtype=torch.float64))
    with pytest.raises(ShapeError, match="One radius a sample"):
        Neighbourhood(torch.ones(1, 2), torch.ones(2, dtype=torch.float64))
