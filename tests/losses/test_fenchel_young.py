"""Fenchel-Young losses against maximisation over the simplex by a solver, and the limits of temperature."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.losses import FenchelYoung, TauCrossEntropy
from lipkit.losses.fenchel_young import (
    ShannonRegularizer,
    SimplexRegularizer,
    SquaredNormRegularizer,
    TemperedRegularizer,
)

REGULARIZERS = [
    ShannonRegularizer(),
    SquaredNormRegularizer(),
    TemperedRegularizer(ShannonRegularizer(), 0.3),
    TemperedRegularizer(SquaredNormRegularizer(), 2.0),
]
each = pytest.mark.parametrize("omega", REGULARIZERS, ids=str)
SCORES = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def value(omega: SimplexRegularizer, p: np.ndarray) -> float:
    """The functions, written down once more."""
    if isinstance(omega, TemperedRegularizer):
        return omega.beta * value(omega.base, p)
    return float(np.sum(p * np.log(np.maximum(p, 1e-300))) if isinstance(omega, ShannonRegularizer) else p @ p / 2)


@each
def test_predictions_maximise_over_the_simplex(omega: SimplexRegularizer):
    for s in SCORES:
        found = minimize(
            lambda p, s=s: value(omega, p) - s.numpy() @ p,
            np.full(4, 0.25),
            bounds=[(0.0, 1.0)] * 4,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
            options={"ftol": 1e-14},
        )
        # SLSQP stops near 1e-7 in the argument, 1e-12 in the value.
        torch.testing.assert_close(omega.predict(s), torch.tensor(found.x), rtol=0, atol=1e-5)
        assert omega.conjugate(s).item() == pytest.approx(-found.fun, abs=1e-9)


@each
def test_the_loss_vanishes_at_its_prediction_and_nowhere_else(omega: SimplexRegularizer):
    loss = FenchelYoung(omega, reduction="none")
    torch.testing.assert_close(loss(SCORES, omega.predict(SCORES)), torch.zeros(6, dtype=torch.float64))
    assert bool((loss(SCORES, 0.9 * omega.predict(SCORES) + 0.1 / 4) > 1e-4).all())


@each
def test_the_gradient_is_the_error_of_the_prediction(omega: SimplexRegularizer):
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    s = SCORES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(FenchelYoung(omega, reduction="sum")(s, labels), s)
    torch.testing.assert_close(gradient, omega.predict(SCORES) - torch.eye(4, dtype=torch.float64)[labels])
    assert torch.autograd.gradcheck(lambda x: FenchelYoung(omega)(x, labels), s)


@each
@pytest.mark.parametrize("tau", [0.2, 1.0, 7.0])
def test_an_inverse_temperature_scales_the_regularizer(omega: SimplexRegularizer, tau: float):
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    left = FenchelYoung(omega)(tau * SCORES, labels)
    torch.testing.assert_close(left, tau * FenchelYoung(TemperedRegularizer(omega, 1 / tau))(SCORES, labels))


def test_entropy_gives_cross_entropy():
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    for tau in (0.5, 1.0, 3.0):
        torch.testing.assert_close(
            FenchelYoung(TemperedRegularizer(ShannonRegularizer(), 1 / tau))(SCORES, labels),
            torch.nn.functional.cross_entropy(tau * SCORES, labels) / tau,
        )


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=6))
def test_sparse_predictions_are_points_of_the_simplex(scores: list[float]):
    p = SquaredNormRegularizer().predict(torch.tensor(scores, dtype=torch.float64))
    # Differences of scores near 1e4 are known to 2e-12.
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-10)
    assert bool((p >= 0).all())


def test_huge_scores_keep_their_differences():
    s = torch.tensor([[1e8, 1e8 + 8, 1e8 - 8]], dtype=torch.float32)
    exact = math.log(1 + math.exp(-8) + math.exp(-16))
    assert FenchelYoung(ShannonRegularizer())(s, torch.tensor([1])).item() == pytest.approx(exact, rel=1e-5)
    assert FenchelYoung(SquaredNormRegularizer())(s, torch.tensor([0])).item() == pytest.approx(8.0)


def test_the_limits_of_temperature():
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    own = SCORES[torch.arange(6), labels]

    def at(beta: float) -> Tensor:
        return TauCrossEntropy(1 / beta, divided=True, reduction="none")(SCORES, labels)

    # |beta LSE(z / beta) - max z| <= beta log K, and the next term for large beta is Var(z) / (2 beta).
    assert float((at(1e-3) - (SCORES.amax(1) - own)).abs().max()) <= 1e-3 * math.log(4)
    spread = SCORES.var(1, unbiased=False)
    rest = at(1e4) - 1e4 * math.log(4) - (SCORES.mean(1) - own)
    torch.testing.assert_close(rest, spread / 2e4, rtol=1e-3, atol=1e-10)


def test_the_printed_limits_of_temperature():
    # Printed: for beta -> 0 the 0-1 loss, piecewise constant. Twice the scores double the limit.
    s, y = torch.tensor([[0.0, 0.7]], dtype=torch.float64), torch.tensor([0])
    limit = [TauCrossEntropy(1e4, divided=True)(scale * s, y).item() for scale in (1.0, 2.0)]
    assert limit == pytest.approx([0.7, 1.4])
    # Printed: for beta -> inf the label does not matter. The slope in the own score tends to 1 / K - 1, not to 0.
    s.requires_grad_()
    (slope,) = torch.autograd.grad(TauCrossEntropy(1e-6, divided=True)(s, y), s)
    torch.testing.assert_close(slope, torch.tensor([[-0.5, 0.5]], dtype=torch.float64), rtol=1e-5, atol=0)


def test_the_printed_simplex_is_empty():
    # Printed: s_i <= 0 and sum s_i = 1. Predictions have entries >= 0.
    for omega in REGULARIZERS:
        p = omega.predict(SCORES)
        assert bool((p >= 0).all())
        torch.testing.assert_close(p.sum(1), torch.ones(6, dtype=torch.float64))
        assert bool((p.clamp(max=0).sum(1) == 0).all())


def test_distributions_have_the_shape_of_the_scores():
    with pytest.raises(ShapeError, match=r"\(6, 4\), got \(6, 3\)"):
        inspect.unwrap(FenchelYoung.forward)(FenchelYoung(ShannonRegularizer()), SCORES, SCORES[:, :3])
