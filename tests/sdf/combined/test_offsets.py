"""Solids that grow and walls around surfaces, against closed forms."""

import math
from fractions import Fraction

import pytest
import torch

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.sdf._base import constant_of

BOX = sdf.Box(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]))
X = 2 * torch.randn(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_box_that_grew_has_round_corners() -> None:
    # Within 0.5 of the box: the Minkowski sum with a ball, by the nearest point of the box.
    away = (X - X.clamp(-1, 1)).norm(dim=1)
    assert torch.equal(sdf.Offset(BOX, 0.5)(X) > 0, away < 0.5)


def test_an_offset_of_a_ball_is_a_ball() -> None:
    small, large = sdf.Sphere(torch.zeros(2), 1.0), sdf.Sphere(torch.zeros(2), 1.75)
    a, b = sdf.Offset(small, 0.75).measure(X), large.measure(X)
    assert bool(((a.value - b.value).abs() <= a.error + b.error).all())
    c = sdf.Offset(large, -0.75).measure(X)
    assert bool(((small(X) - c.value).abs() <= 2 * c.error).all())


def test_a_wall_has_its_thickness() -> None:
    ball = sdf.Sphere(torch.zeros(2), 1.0)
    radius = X.norm(dim=1)
    assert torch.equal(sdf.Shell(ball, 0.5)(X) > 0, (radius > 0.75) & (radius < 1.25))
    # In the middle of the wall half its thickness is free.
    assert float(sdf.Shell(ball, 0.5)(torch.tensor([[0.0, 1.0]]))) == 0.25


def test_constants_stay_what_they_are() -> None:
    steep = sdf.Function(lambda x: 3 * x[:, 0], 2, 3.0)
    for make in (lambda a: sdf.Offset(a, 2.0), lambda a: sdf.Shell(a, 2.0)):
        assert make(BOX).bound.kind is Kind.EXACT
        assert constant_of(make(BOX)) == 1.0
        assert make(steep).bound.kind is Kind.UPPER
        assert constant_of(make(steep)) == constant_of(steep)


def test_the_rounding_of_the_sum_is_counted() -> None:
    # The coordinate itself has no error, so all of it is that of the last operation.
    x = X[:, :1] * 1e-3
    line = sdf.Function(lambda p: p[:, 0], 1, 1.0, roundings=0)
    for field, side in ((sdf.Offset(line, 0.1), 1), (sdf.Shell(line, 0.2), -1)):
        found = field.measure(x)
        for at, value, error in zip(x[:, 0].tolist(), found.value.tolist(), found.error.tolist(), strict=True):
            truth = Fraction(field._shift) / (1 if side > 0 else 2) + side * (
                Fraction(at) if side > 0 else abs(Fraction(at))
            )
            assert abs(Fraction(value) - truth) <= Fraction(error)


def test_bad_numbers_are_refused() -> None:
    for r in (math.inf, math.nan):
        with pytest.raises(ArgumentError, match="offset"):
            sdf.Offset(BOX, r)
    for t in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="thickness"):
            sdf.Shell(BOX, t)
