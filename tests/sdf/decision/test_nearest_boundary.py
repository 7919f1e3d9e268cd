"""The distance to the boundary of 1-NN: dense sampling, attacks in one step, and longer ones that get no nearer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lead(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How much nearer points are to a, from distances alone."""
    left, right = ((x[:, None] - points).norm(dim=2).amin(1) for points in (a, b))
    return right - left


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), a=st.integers(1, 8), b=st.integers(1, 8), dim=st.integers(1, 4))
def test_no_shorter_move_changes_the_class_and_one_of_that_length_ends_at_a_tie(
    seed: int, a: int, b: int, dim: int
) -> None:
    positive, negative, x = normal(seed, a, dim), normal(seed + 1, b, dim), 2 * normal(seed + 2, 12, dim)
    field = sdf.NearestBoundary(positive, negative)
    found, gradient = field.measure(x), field.gradient(x)
    assert torch.equal(found.value > 0, lead(x, positive, negative) > 0)
    # Least squares of a dozen numbers of size one.
    assert float(found.error.max()) < 1e-9
    # Beyond an acute corner of a cell a longer step leaves it again, so the tie is what can be asked for.
    landed = x - found.value[:, None] * gradient
    assert float(lead(landed, positive, negative).abs().max()) < 1e-8
    moves = torch.nn.functional.normalize(normal(seed + 3, 300, dim), dim=1)
    for row, value in zip(x, found.value, strict=True):
        closer = row + (1 - 1e-6) * value.abs() * moves * torch.rand(300, 1, dtype=torch.float64) ** 0.2
        assert bool((lead(closer, positive, negative) * value > 0).all())


def test_two_points_have_their_bisector() -> None:
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, -2.0]])
    x = normal(0, 100, 2)
    # The half-space of points nearer to a: <b - a, x> <= (|b|^2 - |a|^2) / 2.
    half = sdf.HalfSpace((b - a)[0], float((b.square().sum() - a.square().sum()) / 2)).measure(x)
    found = sdf.NearestBoundary(a, b).measure(x)
    assert bool(((found.value - half.value).abs() <= found.error + half.error).all())


def test_one_step_is_the_strongest_attack() -> None:
    """Projected gradient descent on the score needs at least the distance that one step takes."""
    positive, negative, x = normal(0, 30, 2) + 0.7, normal(1, 30, 2) - 0.7, normal(2, 40, 2)
    field = sdf.NearestBoundary(positive, negative)
    value = field(x)
    landed = x - value[:, None] * field.gradient(x)
    assert float(field(landed).abs().max()) < 1e-6
    # The attack of the surrogate, whose gradients lead elsewhere, in balls a little smaller than the radius.
    surrogate = sdf.NearestMargin(positive, negative)
    y, radius = x.clone(), 0.999 * value.abs()
    for _ in range(50):
        y = y - 0.1 * radius[:, None] * value.sign()[:, None] * surrogate.gradient(y)
        move = y - x
        y = x + move * (radius / move.norm(dim=1).clamp(min=1e-30)).clamp(max=1)[:, None]
        assert bool((surrogate(y) * value > 0).all())


def test_on_the_boundary_the_sign_is_in_doubt() -> None:
    a, b = torch.tensor([[1e6, 0.1]]), torch.tensor([[1e6, -0.1]])
    found = sdf.NearestBoundary(a, b).measure(torch.tensor([[1e6, 0.0], [1e6 + 3, 0.0], [1e6, 1e-15]]))
    assert bool((found.value.abs() <= found.error).all())
    assert float(found.error.max()) < 1e-3


def test_it_is_exact() -> None:
    field = sdf.NearestBoundary(normal(0, 5, 3), normal(1, 5, 3))
    assert field.bound.kind is Kind.EXACT
    assert constant_of(field) == 1.0
    assert torch.allclose(field.gradient(normal(2, 20, 3)).norm(dim=1), torch.ones(20, dtype=torch.float64))


def test_what_has_no_boundary_is_refused() -> None:
    both = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    with pytest.raises(ArgumentError, match="both sets"):
        sdf.NearestBoundary(both, both[:1])
    # Two points nearly 1e-160 apart had a boundary half-way to the last digit, with an error of 0.
    with pytest.raises(ArgumentError, match="2e-160 apart"):
        sdf.NearestBoundary(
            torch.tensor([[1e-160]], dtype=torch.float64), torch.tensor([[-1e-160]], dtype=torch.float64)
        )
    with unchecked(), pytest.raises(ShapeError, match="2 and 1"):
        sdf.NearestBoundary(both, torch.ones(1, 1))
    with pytest.raises(NonFiniteError, match="far"):
        sdf.NearestBoundary(both, both + 1)(torch.full((1, 2), 1e300, dtype=torch.float64))
    with pytest.raises(NonFiniteError):
        sdf.NearestBoundary(both, both * math.inf)
