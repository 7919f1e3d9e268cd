"""Several classes: 1-Lipschitz scores, radii that no move of that length refutes, and how far classes are apart."""

import math

import pytest
import torch

from lipkit import sdf
from lipkit.errors import ArgumentError, ShapeError
from support.unchecked import unchecked


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.arange(30) % 3 * 10
POINTS = normal(0, 30, 2) + LABELS[:, None] / 10
X = 2 * normal(1, 60, 2) + 1
both = pytest.mark.parametrize("exact", [True, False])


def nearest_label(x: torch.Tensor) -> torch.Tensor:
    return LABELS[(x[:, None] - POINTS).norm(dim=2).argmin(1)]


@both
def test_classes_are_those_of_the_nearest_point(exact: bool) -> None:
    assert torch.equal(sdf.ClassScores(POINTS, LABELS, exact).predict(X), nearest_label(X))


@both
def test_scores_are_lipschitz_and_have_one_positive_entry(exact: bool) -> None:
    scores = sdf.ClassScores(POINTS, LABELS, exact)
    found = scores(X)
    assert bool(((found > 0).sum(1) == 1).all())
    for i in range(len(X)):
        # Errors are 1e-11 at most.
        assert bool(((found - found[i]).norm(dim=1) <= (X - X[i]).norm(dim=1) + 1e-9).all())


@both
def test_no_move_of_the_radius_changes_the_class(exact: bool) -> None:
    radius = sdf.ClassScores(POINTS, LABELS, exact).radius(X)
    moves = torch.nn.functional.normalize(normal(2, 400, 2), dim=1)
    for row, size in zip(X, radius, strict=True):
        assert bool((nearest_label(row + size * moves) == nearest_label(row[None])).all())


def test_the_radius_of_exact_scores_is_the_margin() -> None:
    """The certificate margin / 2^(1/2) of 1-Lipschitz logits gives away 29 %: a step of the margin ends at a tie."""
    scores = sdf.ClassScores(POINTS, LABELS, exact=True)
    top = scores(X).topk(2, dim=1).values
    assert bool((top[:, 1] == 0).all())
    assert torch.allclose(scores.radius(X), top[:, 0], atol=1e-9)
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(scores(x).amax(1).sum(), x)
    landed = X - top[:, :1] * gradient
    distances = torch.stack([torch.cdist(landed, POINTS[k == LABELS]).amin(1) for k in LABELS.unique()], 1)
    nearest = distances.topk(2, dim=1, largest=False).values
    # cdist multiplies matrices, which costs half the digits at most.
    assert float(nearest.diff(dim=1).max()) < 1e-6


def test_separation_is_the_smallest_distance_between_classes() -> None:
    truth = min(
        math.dist(p, q)
        for p, a in zip(POINTS.tolist(), LABELS.tolist(), strict=True)
        for q, b in zip(POINTS.tolist(), LABELS.tolist(), strict=True)
        if a != b
    )
    found = sdf.epsilon_separation(POINTS, LABELS)
    assert truth * (1 - 1e-12) <= found <= truth
    # At the training points every margin is at least half of it, and some is no more.
    radius = sdf.ClassScores(POINTS, LABELS).radius(POINTS)
    assert float(radius.min()) == pytest.approx(found / 2, rel=1e-9)


def test_classes_that_touch_are_not_separated() -> None:
    assert sdf.epsilon_separation(torch.tensor([[0.0], [1.0], [1.0]]), torch.tensor([0, 0, 1])) == 0.0


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match="two classes"):
        sdf.epsilon_separation(POINTS, LABELS * 0)
    with unchecked(), pytest.raises(ShapeError, match="labels"):
        sdf.ClassScores(POINTS, LABELS[:5])
