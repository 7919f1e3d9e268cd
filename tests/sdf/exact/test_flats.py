"""Unions of affine subspaces: against least squares, what orthonormal bases miss, and flats that are fitted."""

import itertools

import numpy as np
import pytest
import torch

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import constant_of


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("q", [0, 1, 4])
def test_distances_are_those_of_least_squares(q: int) -> None:
    origins, bases, x = normal(0, 6, 7), normal(1, 6, q, 7), normal(2, 100, 7)
    truth = np.full(100, np.inf)
    for o, b in zip(origins.numpy(), bases.numpy(), strict=True):
        away = (x.numpy() - o).T
        left = away - b.T @ np.linalg.lstsq(b.T, away, rcond=None)[0]
        truth = np.minimum(truth, np.linalg.norm(left, axis=0))
    field = sdf.Flats(origins, bases)
    found = field.measure(x)
    # The reference is as good as float64.
    assert bool(((-found.value - torch.from_numpy(truth)).abs() <= found.error + 1e-13).all())
    assert float(found.error.max()) < 1e-10
    assert field.bound.kind is Kind.EXACT
    assert constant_of(field) == 1.0


def test_points_on_flats_have_distance_zero() -> None:
    origins, bases = 1e3 * normal(0, 5, 30), normal(1, 5, 4, 30)
    weights = normal(2, 5, 20, 4)
    x = (origins[:, None] + weights @ bases).flatten(0, 1)
    found = sdf.Flats(origins, bases).measure(x)
    assert bool((found.value.abs() <= found.error).all())
    # By Pythagoras alone the error would be the root of that of numbers of size 1e7, 1e-4.
    assert float(found.value.abs().max()) < 1e-10


def test_gradients_are_orthogonal_to_the_flat() -> None:
    origins, bases, x = normal(0, 4, 6), normal(1, 4, 2, 6), normal(2, 50, 6)
    field = sdf.Flats(origins, bases)
    gradient, which = field.gradient(x), field.nearest(x)
    assert torch.allclose(gradient.norm(dim=1), torch.ones(50, dtype=torch.float64), atol=1e-12)
    along = (bases[which] @ gradient[:, :, None])[:, :, 0]
    assert float(along.abs().max()) < 1e-12
    # One step reaches the flat.
    assert float(field(x - field(x)[:, None] * gradient).abs().max()) < 1e-12


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 1e200])
def test_the_lengths_of_directions_do_not_matter(scale: float) -> None:
    origins, bases, x = normal(0, 4, 6), normal(1, 4, 2, 6), normal(2, 50, 6)
    found = sdf.Flats(origins, bases * scale).measure(x)
    assert bool(((found.value - sdf.Flats(origins, bases)(x)).abs() <= 2 * found.error).all())


def test_directions_that_are_nearly_dependent_cost_digits() -> None:
    origins, x = torch.zeros(1, 3), normal(0, 50, 3)
    bases = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 1e-6, 0.0]]], dtype=torch.float64)
    found = sdf.Flats(origins, bases).measure(x)
    assert bool(((found.value + x[:, 2].abs()).abs() <= found.error).all())
    assert 1e-12 < float(found.error.max()) < 1e-6
    with pytest.raises(ArgumentError, match="depend"):
        sdf.Flats(origins, torch.tensor([[[1.0, 0.0, 0.0], [1.0, 1e-14, 0.0]]], dtype=torch.float64))


def lines(count: int) -> torch.Tensor:
    """Points on three lines in space, a little noisy."""
    starts = torch.tensor([[0.0, 0.0, 0.0], [20.0, 0.0, 0.0], [0.0, 20.0, 0.0]], dtype=torch.float64)
    along = torch.nn.functional.normalize(normal(3, 3, 3), dim=1)
    which = torch.arange(count) % 3
    return starts[which] + 2 * normal(4, count, 1) * along[which] + 1e-3 * normal(5, count, 3)


def test_fitted_lines_are_those_the_points_were_drawn_from() -> None:
    points = lines(300)
    field = sdf.Flats.fit(points, 3, 1, seed=0)
    # The noise has 1e-3 an axis, so of 300 points none is likely to be 5e-3 away.
    assert float(field(points).abs().max()) < 5e-3
    assert torch.equal(field(points), sdf.Flats.fit(points, 3, 1, seed=0)(points))
    assert field.origins.shape == (3, 3)
    assert field.bases.shape == (3, 1, 3)


def test_one_flat_is_that_of_principal_components() -> None:
    points = normal(0, 200, 6) * torch.tensor([5.0, 3.0, 1.0, 0.5, 0.2, 0.1])
    sizes = np.linalg.svd((points - points.mean(0)).numpy(), compute_uv=False)
    left = float(sdf.Flats.fit(points, 1, 2)(points).square().sum())
    assert left == pytest.approx(float((sizes[2:] ** 2).sum()), rel=1e-10)


def test_rounds_lower_the_sum_of_squares() -> None:
    points = normal(0, 400, 8)
    sums = [float(sdf.Flats.fit(points, 5, 2, rounds=r, seed=1)(points).square().sum()) for r in range(5)]
    assert all(after <= before for before, after in itertools.pairwise(sums))
    assert sums[-1] < 0.97 * sums[0]


def test_few_points_or_repeated_ones_span_less() -> None:
    points = torch.cat([torch.zeros(50, 4), torch.ones(3, 4) * torch.arange(1.0, 4.0)[:, None]]).double()
    field = sdf.Flats.fit(points, 3, 2, seed=0)
    assert float(field(points).abs().max()) < 1e-12
    assert bool(torch.isfinite(field.measure(normal(0, 20, 4)).value).all())


def test_what_is_no_flat_is_refused() -> None:
    with pytest.raises(ShapeError, match="bases"):
        sdf.Flats(torch.zeros(2, 3), torch.ones(2, 3, 3))
    with pytest.raises(NonFiniteError):
        sdf.Flats(torch.zeros(2, 3), torch.full((2, 1, 3), torch.nan))
    for count, dim, rounds in ((0, 1, 1), (11, 1, 1), (2, 3, 1), (2, -1, 1), (2, 1, -1)):
        with pytest.raises(ArgumentError, match="flats of dimension"):
            sdf.Flats.fit(torch.zeros(10, 3), count, dim, rounds)
