"""Blends: constants of every operator in use, found by search; which ones lose theirs; how far a seam may move."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.sdf._base import constant_of

BLENDS: dict[sdf.Blend, float] = {
    sdf.QuadraticBlend(): 1 / 4,
    sdf.CubicBlend(): 1 / 6,
    sdf.RootBlend(): 1 / 2,
    sdf.ExponentialBlend(): math.log(2),
}
every_blend = pytest.mark.parametrize("blend", BLENDS, ids=lambda one: type(one).__name__)

# Two coordinates in place of two fields of constant 1: the constant of an operator on any such two is the largest
# |w_a| + |w_b|, its derivatives.
FIRST, SECOND = (sdf.Function(lambda x, i=i: x[:, i], 2, 1.0) for i in (0, 1))
Operator = Callable[[Tensor, Tensor], Tensor]


def largest_weight(operator: Operator, positive: bool = False) -> float:
    """The largest |w_a| + |w_b| over pairs, by autograd, then refined around the best pair."""
    random = torch.Generator().manual_seed(0)

    def weights(pairs: Tensor) -> Tensor:
        pairs = (pairs.abs() if positive else pairs).detach().requires_grad_()
        (found,) = torch.autograd.grad(operator(pairs[:, 0], pairs[:, 1]).sum(), pairs)
        return found.abs().sum(1).nan_to_num(0)

    pairs = 3 * torch.randn(200_000, 2, generator=random, dtype=torch.float64)
    best = pairs[weights(pairs).argmax()]
    for width in (0.1, 0.01, 0.001):
        pairs = best + width * torch.randn(20_000, 2, generator=random, dtype=torch.float64)
        best = torch.cat([best[None], pairs])[weights(torch.cat([best[None], pairs])).argmax()]
    return float(weights(best[None]))


KEPT: dict[str, Operator] = {
    "union": torch.maximum,
    "intersection": torch.minimum,
    "difference": lambda a, b: torch.minimum(a, -b),
    "log-sum-exp": torch.logaddexp,
    "quadratic": lambda a, b: torch.maximum(a, b) + (1 - (a - b).abs()).clamp(min=0) ** 2 / 4,
    "cubic": lambda a, b: torch.maximum(a, b) + (1 - (a - b).abs()).clamp(min=0) ** 3 / 6,
    "root": lambda a, b: (a + b + ((a - b) ** 2 + 1).sqrt()) / 2,
    "convex combination": lambda a, b: 0.3 * a + 0.7 * b,
    "offset": lambda a, b: a + 0.3 + 0 * b,
    "shell": lambda a, b: 0.3 - a.abs() + 0 * b,
}
LOST: dict[str, tuple[Operator, float, float]] = {
    # The weighted mean of the two with weights exp(-f): one derivative is negative.
    "Boltzmann minimum": (lambda a, b: (a * (-a).exp() + b * (-b).exp()) / ((-a).exp() + (-b).exp()), 1.1997, 1e-4),
    # At a = b < 0 or > 0, whichever adds: 1 + 1/2^(1/2) twice.
    "R-function": (lambda a, b: a + b - (a * a + b * b).sqrt(), 2 + math.sqrt(2), 1e-6),
    "sum": (lambda a, b: a + b, 2.0, 1e-12),
}


@pytest.mark.parametrize("name", KEPT)
def test_operators_that_keep_the_constant(name: str) -> None:
    # Derivatives are off by a few roundings.
    assert largest_weight(KEPT[name]) == pytest.approx(1, abs=1e-9)


def test_the_power_blend_of_positive_values_keeps_it_too() -> None:
    # (a^-p + b^-p)^(-1/p) has weights (f/a)^(p+1), whose sum is at most 1.
    assert largest_weight(lambda a, b: (a**-4 + b**-4) ** (-1 / 4), positive=True) <= 1 + 1e-9


@pytest.mark.parametrize("name", LOST)
def test_operators_that_lose_the_constant(name: str) -> None:
    operator, constant, close = LOST[name]
    assert largest_weight(operator) == pytest.approx(constant, abs=close)


@every_blend
def test_a_blend_keeps_the_constant(blend: sdf.Blend) -> None:
    for field in (sdf.SmoothUnion(FIRST, SECOND, 0.7, blend), sdf.SmoothIntersection(FIRST, SECOND, 0.7, blend)):
        weight = largest_weight(lambda a, b, field=field: field(torch.stack([a, b], 1)))
        assert weight == pytest.approx(1, abs=1e-9)
        assert constant_of(field) == 1.0
        assert field.bound.kind is Kind.UPPER


@every_blend
def test_slopes_of_blends_lie_in_the_stated_range(blend: sdf.Blend) -> None:
    gap = torch.linspace(0, 50, 100_001, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(blend(gap).sum(), gap)
    assert float(slope.min()) >= -0.5 - 1e-12
    assert float(slope.max()) <= 0
    # Convex, so that nothing between the samples is steeper.
    assert bool((slope.diff() >= -1e-12).all())
    assert blend.largest == pytest.approx(BLENDS[blend], rel=1e-15)
    assert float(blend(gap.detach()[:1])) == pytest.approx(BLENDS[blend], rel=1e-15)


@every_blend
def test_a_seam_moves_by_the_stated_width(blend: sdf.Blend) -> None:
    left, right = (sdf.Sphere(torch.tensor([side * 0.7, 0.0]), 1.0) for side in (-1, 1))
    x = 2 * torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0] = torch.tensor([0.0, 0.3])
    for smooth, sharp, side in (
        (sdf.SmoothUnion(left, right, 0.4, blend), sdf.Union(left, right), 1),
        (sdf.SmoothIntersection(left, right, 0.4, blend), sdf.Intersection(left, right), -1),
    ):
        added = side * (smooth(x) - sharp(x))
        assert float(added.min()) >= -1e-12
        assert float(added.max()) == pytest.approx(0.4 * BLENDS[blend], rel=1e-6)


def test_the_rounding_of_a_blend_is_counted() -> None:
    # Coordinates have no error here, so all of it is that of the blend.
    a, b = (sdf.Function(lambda p, i=i: p[:, i], 2, 1.0, roundings=0) for i in (0, 1))
    x = 1e-3 * torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = sdf.SmoothUnion(a, b, 0.1).measure(x)
    for (p, q), value, error in zip(x.tolist(), found.value.tolist(), found.error.tolist(), strict=True):
        left, right, width = Fraction(p), Fraction(q), Fraction(0.1)
        truth = max(left, right) + (width - abs(left - right)) ** 2 / (4 * width)
        assert abs(Fraction(value) - truth) <= Fraction(error)


def test_blends_that_end_change_nothing_beyond_the_width() -> None:
    x = 2 * torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    far = (x[:, 0] - x[:, 1]).abs() >= 0.4
    for blend in (sdf.QuadraticBlend(), sdf.CubicBlend()):
        assert torch.equal(sdf.SmoothUnion(FIRST, SECOND, 0.4, blend)(x)[far], sdf.Union(FIRST, SECOND)(x)[far])


@pytest.mark.parametrize("width", [0.0, -1.0, math.inf, math.nan])
def test_a_seam_has_a_width(width: float) -> None:
    with pytest.raises(ArgumentError, match="width > 0"):
        sdf.SmoothUnion(FIRST, SECOND, width)
