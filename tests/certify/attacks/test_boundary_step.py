"""One step to the boundary on analytic signed distance functions."""

import math

import pytest
import torch
from torch import Tensor

from lipkit.certify.attacks import PGD, BoundaryStep, MinimalRadius, TwoClasses
from lipkit.errors import ArgumentError, ShapeError


def sphere(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1) - 1


def two_spheres(x: Tensor) -> Tensor:
    return torch.minimum(sphere(x), sphere(x - 5))


def plane(x: Tensor) -> Tensor:
    return x @ torch.tensor([0.6, 0.0, 0.8], dtype=x.dtype) - 0.3


@pytest.fixture
def points() -> Tensor:
    return 3 * torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("score", [sphere, two_spheres, plane])
def test_it_lands_on_the_boundary_of_a_signed_distance(score, points: Tensor):
    labels = (score(points) > 0).long()
    found = BoundaryStep(100.0, overshoot=0.0)(TwoClasses(score), points, labels)
    # Spheres curve; a signed distance does not: its gradient line meets the boundary at |f| exactly, up to rounding.
    assert float(score(found).abs().max()) < 1e-12
    crossed = BoundaryStep(100.0)(TwoClasses(score), points, labels)
    assert bool(((score(crossed) > 0).long() != labels).all())


def test_pgd_does_no_better(points: Tensor):
    labels = (sphere(points) > 0).long()
    nearest = MinimalRadius(PGD(12.0, steps=25), rounds=6)(
        TwoClasses(sphere), points, labels, generator=torch.Generator().manual_seed(0)
    )
    distance = sphere(points).abs()
    assert bool((nearest.radius >= distance * (1 - 1e-12)).all())
    assert bool((nearest.radius <= distance * 1.02 + 1e-6).all())


@pytest.mark.parametrize(("norm", "dual"), [(1.0, math.inf), (2.0, 2.0), (math.inf, 1.0)])
def test_it_is_exact_for_affine_scores_in_every_norm(norm: float, dual: float):
    w = torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    x = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 2.0, 0.0]], dtype=torch.float64)
    labels = (x @ w > 0).long()
    found = BoundaryStep(100.0, norm, overshoot=0.0)(TwoClasses(lambda z: z @ w), x, labels)
    moved = torch.linalg.vector_norm(found - x, ord=norm, dim=1)
    assert torch.allclose(moved, (x @ w).abs() / torch.linalg.vector_norm(w, ord=dual), rtol=1e-12)
    assert float((found @ w).abs().max()) < 1e-12


def test_wrong_samples_and_flat_ones_stay():
    x = torch.zeros(2, 3, dtype=torch.float64)
    square = TwoClasses(lambda z: z.square().sum(1) - 1)
    for norm in (1.0, 2.0, math.inf):
        assert torch.equal(BoundaryStep(1.0, norm)(square, x, torch.tensor([0, 1])), x)
    with pytest.raises(ShapeError, match="one score"):
        BoundaryStep(1.0)(TwoClasses(lambda z: z), x, torch.tensor([0, 1]))
    with pytest.raises(ArgumentError, match="overshoot"):
        BoundaryStep(1.0, overshoot=-1.0)
