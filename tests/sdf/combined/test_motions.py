"""Rotations, shifts and scalings: against solids built in place, with constants by search, and what is refused."""

import math

import pytest
import torch

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked

BALL = sdf.Sphere(torch.tensor([0.5, 0.0, 0.25]), 0.75)
HALF = sdf.HalfSpace(torch.tensor([1.0, 2.0, -1.0]), 0.5)
X = 2 * torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SHIFT = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def rotation(seed: int, dim: int = 3) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q


def same(a: sdf.Field, b: sdf.Field) -> bool:
    first, second = a.measure(X), b.measure(X)
    # The parameters of the solid built in place are rounded too: a few units of numbers below ten.
    return bool(((first.value - second.value).abs() <= first.error + second.error + 1e-14).all())


@pytest.mark.parametrize("seed", range(3))
def test_a_moved_ball_is_a_ball_elsewhere(seed: int) -> None:
    turn = rotation(seed)
    there = sdf.Sphere(turn @ BALL.center + SHIFT, 0.75)
    assert same(sdf.Moved(BALL, SHIFT, turn), there)
    normal = turn @ HALF.normal
    assert same(sdf.Moved(HALF, SHIFT, turn), sdf.HalfSpace(normal, HALF.offset + float(normal @ SHIFT)))


def test_a_shift_keeps_the_kind_and_a_rotation_pays_for_its_rounding() -> None:
    assert sdf.Moved(BALL, SHIFT).bound.kind is Kind.EXACT
    turned = sdf.Moved(BALL, SHIFT, rotation(0))
    assert turned.bound.kind is Kind.UPPER
    assert 1 < constant_of(turned) < 1 + 1e-13
    # The largest slope is the largest singular value, which numpy finds to 1e-15.
    assert constant_of(turned) >= float(torch.linalg.matrix_norm(rotation(0), 2)) - 1e-15


def test_a_rotation_that_stretches_within_rounding_is_counted() -> None:
    slack = 1e-13
    turned = sdf.Moved(BALL, SHIFT, rotation(0) * (1 + slack))
    assert constant_of(turned) >= 1 + slack


@pytest.mark.parametrize("factor", [0.25, 1.0, 3.0])
def test_a_scaled_ball_is_a_ball(factor: float) -> None:
    assert same(sdf.Scaled(BALL, factor), sdf.Sphere(BALL.center * factor, 0.75 * factor))
    assert sdf.Scaled(BALL, factor).bound.kind is Kind.EXACT
    assert constant_of(sdf.Scaled(BALL, factor)) == 1.0


def test_a_stretched_solid_stays_below_the_distance() -> None:
    """An ellipsoid; without the factor in front the constant is 1 / min(s), here 4."""
    stretch = torch.tensor([0.25, 1.0, 2.0], dtype=torch.float64)
    ball = sdf.Sphere(torch.zeros(3), 1.0)
    field = sdf.Scaled(ball, stretch)
    assert field.bound.kind is Kind.UPPER
    assert constant_of(field) == 1.0
    directions = torch.nn.functional.normalize(torch.randn(40_000, 3, dtype=torch.float64), dim=1)
    away = torch.cdist(X, directions * stretch).amin(1)
    assert bool((field(X).abs() <= away).all())
    slope = field.gradient(X).norm(dim=1)
    assert float(slope.max()) <= 1 + 1e-12
    # Near the first axis the slope of a(x / s) is that constant.
    near = torch.tensor([[0.2, 0.0, 0.0]])
    assert float(field.gradient(near).norm()) / float(stretch.min()) == pytest.approx(4)


def test_what_is_no_motion_is_refused() -> None:
    with pytest.raises(ShapeError, match="shift"):
        sdf.Moved(BALL, torch.zeros(2))
    with pytest.raises(ShapeError, match="rotation"):
        sdf.Moved(BALL, SHIFT, torch.eye(2))
    with unchecked(), pytest.raises(ShapeError, match="rotation"):
        sdf.Moved(BALL, SHIFT, torch.ones(3, 2))
    for bad in (2 * torch.eye(3), torch.eye(3) * torch.nan, rotation(0).float(), torch.ones(3, 3)):
        with pytest.raises(ArgumentError, match="orthogonal"):
            sdf.Moved(BALL, SHIFT, bad)
    for factor in (0.0, -1.0, torch.tensor([1.0, 1.0, -1.0])):
        with pytest.raises(ArgumentError, match="positive"):
            sdf.Scaled(BALL, factor)
    with pytest.raises(ShapeError, match="factor"):
        sdf.Scaled(BALL, torch.ones(2))
    with pytest.raises(NonFiniteError):
        sdf.Scaled(BALL, math.inf)
