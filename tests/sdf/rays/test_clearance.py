"""Free radii: of a field's own zero set, and of a surface that it only comes near."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import sdf
from lipkit.errors import ArgumentError
from support.unchecked import unchecked


@dataclass(frozen=True)
class UpTo:
    """A proven deviation, as a number."""

    upper: float


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.floats(1e-6, 1e6))
def test_radii_are_below_the_true_distance_in_rational_arithmetic(point: list[float], radius: float):
    center = [1.0, -2.0, 1e-3]
    x = torch.tensor([point], dtype=torch.float64)
    found = Fraction(sdf.clearance(sdf.Sphere(torch.tensor(center, dtype=torch.float64), radius), x).item())
    square = sum(
        (Fraction(a) - Fraction(b)) ** 2
        for a, b in zip(point, torch.tensor(center, dtype=torch.float64).tolist(), strict=True)
    )
    # | |x - c| - R | >= r, without roots.
    big, small = Fraction(radius) + found, Fraction(radius) - found
    assert found == 0 or square >= big**2 or (small >= 0 and square <= small**2)


def test_radii_are_as_large_as_rounding_allows():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.5], [0.0, 1.0]])
    found = sdf.clearance(sdf.Sphere(torch.zeros(2), 1.0), x)
    assert found.tolist() == pytest.approx([4.0, 0.5, 0.0], abs=1e-13)


def test_the_distance_to_data_needs_the_deviation():
    draw = torch.Generator().manual_seed(0)
    data = torch.randn(300, 3, generator=draw, dtype=torch.float64)
    ball = sdf.Sphere(torch.zeros(3), 1.0)
    x = 6 * torch.rand(100_000, 3, generator=draw, dtype=torch.float64) - 3
    truth = torch.cat([torch.cdist(part, data).amin(1) for part in x.split(10_000)])
    # Published: |f| never overestimates the distance. It does nearly everywhere, for data are not the zeros of f.
    share = (sdf.clearance(ball, x) > truth).double().mean().item()
    assert share > 0.3
    upper = float(ball(data).abs().max()) * (1 + 1e-12)
    assert bool((sdf.clearance(ball, x, UpTo(upper)) <= truth).all())
    # With nine tenths of it the statement is false somewhere, so the term is no waste.
    near = data[ball(data).abs().argmax()] * torch.linspace(1, 3, 200, dtype=torch.float64)[:, None]
    distance = torch.cdist(near, data).amin(1)
    assert bool((sdf.clearance(ball, near, UpTo(0.9 * upper)) > distance).any())


@pytest.mark.parametrize("upper", [-1.0, float("inf"), float("nan")])
def test_senseless_deviations_are_refused(upper: float):
    with pytest.raises(ArgumentError, match="upper bound"):
        sdf.clearance(sdf.Sphere(torch.zeros(2), 1.0), torch.zeros(1, 2), UpTo(upper))


def test_a_number_is_no_deviation():
    with unchecked(), pytest.raises(ArgumentError, match=r"got 0\.5"):
        sdf.clearance(sdf.Sphere(torch.zeros(2), 1.0), torch.zeros(1, 2), 0.5)  # pyright: ignore[reportArgumentType]
