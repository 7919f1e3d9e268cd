"""Half the difference of two distances: signs, the distance it stays below, and where it is the distance."""

import pytest
import torch

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ShapeError
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A, B, X = normal(0, 40, 5) + 0.5, normal(1, 50, 5) - 0.5, normal(2, 200, 5)


def test_signs_are_those_of_the_nearest_point() -> None:
    nearest = torch.cdist(X, torch.cat([A, B])).argmin(1)
    assert torch.equal(sdf.NearestMargin(A, B)(X) > 0, nearest < len(A))


def test_it_is_the_distance_between_nearest_points() -> None:
    distances = torch.cdist(A, B)
    i, j = divmod(int(distances.argmin()), len(B))
    share = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None]
    x = A[i] + share * (B[j] - A[i])
    # On the segment the boundary is its middle.
    assert torch.allclose(sdf.NearestMargin(A, B)(x), (0.5 - share[:, 0]) * distances.min(), atol=1e-12)


def test_it_stays_below_the_distance() -> None:
    margin, boundary = sdf.NearestMargin(A, B).measure(X), sdf.NearestBoundary(A, B).measure(X)
    assert bool((margin.value.abs() - margin.error <= boundary.value.abs() + boundary.error).all())
    # And not only by rounding.
    assert bool((margin.value.abs() < 0.9 * boundary.value.abs()).any())


def test_the_constant_is_one_and_reached() -> None:
    field = sdf.NearestMargin(A, B)
    assert field.bound.kind is Kind.EXACT
    assert constant_of(field) == 1.0
    distances = torch.cdist(A, B)
    i, j = divmod(int(distances.argmin()), len(B))
    assert float(field.gradient((A[i] + B[j])[None] / 2).norm()) == pytest.approx(1, abs=1e-12)


def test_sets_lie_in_one_space() -> None:
    with unchecked(), pytest.raises(ShapeError, match="one dimension"):
        sdf.NearestMargin(A, B[:, :3])
