"""Nearest neighbours as a field: against scikit-learn, both ways to search, gradients, blocks, bad input."""

import pickle

import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("k", [1, 5])
def test_scores_are_those_of_scikit_learn(dim: int, k: int) -> None:
    points, x = normal(0, 700, dim), normal(1, 300, dim)
    distance, index = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(points.numpy()).kneighbors(x.numpy())
    # Brute force there subtracts products too: 1e-12 in the squares.
    assert torch.allclose(-sdf.Points(points, k)(x), torch.from_numpy(distance[:, -1]), atol=1e-10)
    assert torch.allclose(-sdf.Points(points, k, mean=True)(x), torch.from_numpy(distance.mean(1)), atol=1e-10)
    assert torch.equal(sdf.Points(points, k).nearest(x).index, torch.from_numpy(index))


def test_a_point_is_its_own_neighbour() -> None:
    points = normal(0, 200, 12)
    assert float(sdf.Points(points)(points).abs().max()) == 0
    others = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").topk(2, largest=False).values
    assert torch.allclose(sdf.Points(points, 2)(points), -others[:, 1], rtol=1e-14)


def test_the_mean_of_squares_has_no_constant() -> None:
    """The mean of distances has slope 1 at most; that of their squares grows with the distance."""
    points, far = normal(0, 20, 2), torch.tensor([[100.0, 0.0]], dtype=torch.float64)
    assert float(sdf.Points(points, 5, mean=True).gradient(far).norm()) <= 1
    x = far.clone().requires_grad_()
    squares = sdf.Points(points, 5).nearest(far).index
    ((x[:, None] - points[squares]) ** 2).sum(2).mean(1).sum().backward()
    assert x.grad is not None
    assert float(x.grad.norm()) > 100


def test_gradients_lead_away_from_the_neighbours() -> None:
    points, x = normal(0, 50, 3), normal(1, 30, 3)
    nearest = torch.cdist(x, points).argmin(1)
    away = torch.nn.functional.normalize(x - points[nearest], dim=1)
    assert torch.allclose(sdf.Points(points).gradient(x), -away, atol=1e-12)
    # At a point of the cloud the length has a kink, of which zero is a subgradient.
    assert float(sdf.Points(points).gradient(points[:3]).abs().max()) == 0


def test_constants_are_exact() -> None:
    points = normal(0, 50, 3)
    for field in (sdf.Points(points), sdf.Points(points, 5), sdf.Points(points, 5, mean=True)):
        assert field.bound.kind is Kind.EXACT
        assert constant_of(field) == 1.0
        # Far out the slope comes near it.
        x = torch.tensor([[1e6, 0.0, 0.0]], dtype=torch.float64)
        assert float(field.gradient(x).norm()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("dim", [2, 20])
def test_they_can_be_stored(dim: int) -> None:
    field, x = sdf.Points(normal(0, 50, dim), 3), normal(1, 10, dim)
    before = field(x)
    assert torch.equal(pickle.loads(pickle.dumps(field))(x), before)


def test_the_points_are_copied() -> None:
    points, x = normal(0, 50, 12), normal(1, 10, 12)
    field = sdf.Points(points)
    before = field(x)
    points.zero_()
    assert torch.equal(field(x), before)


def test_what_is_no_cloud_is_refused() -> None:
    for k in (0, -1, 4):
        with pytest.raises(ArgumentError, match="Between 1 and 3"):
            sdf.Points(torch.zeros(3, 2), k)
    with pytest.raises(NonFiniteError):
        sdf.Points(torch.full((3, 2), torch.nan))
    with pytest.raises(ShapeError, match="at least one"):
        sdf.Points(torch.zeros(0, 2))
    with unchecked(), pytest.raises(ShapeError, match="at least one"):
        sdf.Points(torch.zeros(3))
