"""Power iteration: from below at every step, at the right rate, warm from where it stopped."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.linops import Conv, Dense, LinearOperator, Padding, materialize
from lipkit.norms import Power
from support.operators.geometries import operators


def gaussian(rows: int, cols: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, cols, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_values(values: list[float], n: int = 12) -> Tensor:
    left, right = (torch.linalg.qr(gaussian(n, len(values), seed)).Q for seed in (1, 2))
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.mT


def vector(bound: Bound) -> Tensor:
    assert bound.state is not None
    return bound.state


@settings(max_examples=30)
@given(operators())
def test_from_below_and_never_falling(op: LinearOperator) -> None:
    truth = torch.linalg.svdvals(materialize(op)).max()
    values = [float(Power(steps)(op).value) for steps in (0, 1, 2, 4, 9)]
    # A converged value may fall by what is subtracted for rounding, n 2^-53 of the operator without signs.
    # Rising in exact arithmetic; each value is a norm of products of at most a hundred terms.
    assert all(after >= before - 1e-12 * (1 + float(truth)) for before, after in itertools.pairwise(values))
    assert all(value <= truth * (1 + 150 * 2.0**-53) for value in values)


def test_a_warm_start_goes_on_where_it_stopped() -> None:
    for op in (Dense(gaussian(9, 6)), Dense(gaussian(6, 9))):
        half = Power(5)(op)
        # Normalising once more in between changes the last digit.
        # The same steps in the same order, but for one more normalisation.
        assert Power(5)(op, state=vector(half)).value == pytest.approx(float(Power(10)(op).value), rel=1e-13, abs=0)
        assert Power(0)(op, state=vector(half)).value == pytest.approx(float(half.value), rel=1e-13, abs=0)
        assert half.kind is Kind.LOWER


def test_the_sequential_form() -> None:
    """v <- W'u/|.|, u <- W v/|.|, sigma = u'W v, from the same start."""
    matrix = gaussian(9, 6)
    u = matrix @ vector(Power(0)(Dense(matrix)))
    u = u / u.norm()
    for steps in range(1, 6):
        v = matrix.mT @ u / (matrix.mT @ u).norm()
        u = matrix @ v / (matrix @ v).norm()
        # The same steps written out: a few roundings apart.
        assert Power(steps)(Dense(matrix)).value == pytest.approx(float(u @ matrix @ v), rel=1e-13)


def test_the_error_falls_by_the_fourth_power_of_the_gap() -> None:
    op = Dense(with_values([1.0, 0.8, 0.3]))
    errors = [1 - float(Power(steps)(op).value) for steps in (16, 17, 18, 19)]
    for before, after in itertools.pairwise(errors):
        # sigma_2/sigma_1 = 0.8: 0.4096 a step, once the error, 1e-6 here, is small beside 1.
        assert after / before == pytest.approx(0.8**4, rel=1e-3)


def test_convolutions_without_a_matrix() -> None:
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for mode, stride in ((Padding.ZEROS, 1), (Padding.ZEROS, 2), (Padding.CIRCULAR, 1)):
        op = Conv(weight, (6, 6), (stride, stride), ((1, 1), (1, 1)), (1, 1), 1, mode)
        truth = float(torch.linalg.svdvals(materialize(op))[0])
        bound = Power(300)(op)
        assert bound.value <= truth * (1 + 144 * 2.0**-53)
        # With a random start n (1 - e)^(4 steps) is left of the values more than e below the largest: e = 1 percent.
        assert bound.value >= truth * 0.99


def test_stopping_early_saves_steps_and_stays_below() -> None:
    op = Dense(with_values([1.0, 0.5]))
    stopped, full = Power(100, rtol=1e-3)(op), Power(100)(op)
    assert stopped.value < full.value <= 1
    # The last change was below 1e-3; with a gap of 1/2 the error left is no larger.
    assert stopped.value >= 1 - 1e-3


def test_the_gradient_at_convergence() -> None:
    matrix = with_values([2.0, 1.0, 0.5]).requires_grad_()
    u, _, vh = torch.linalg.svd(matrix.detach())
    (found,) = torch.autograd.grad(Power(60)(Dense(matrix)).value, matrix)
    # (1/2)^(2 * 60) is nothing: only rounding is left.
    torch.testing.assert_close(found, torch.outer(u[:, 0], vh[0]), rtol=0, atol=1e-12)


def test_a_kernel_start_and_a_zero_operator_give_zero() -> None:
    op = Dense(torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)))
    assert Power()(op, state=torch.tensor([0.0, 1.0], dtype=torch.float64)).value == 0
    assert Power()(Dense(torch.zeros(3, 2))).value == 0


def test_refusals_and_seeds() -> None:
    with pytest.raises(ArgumentError, match=r"Power\.steps"):
        Power(-1)
    for rtol in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match=r"Power\.rtol"):
            Power(rtol=rtol)
    op = Dense(gaussian(9, 6))
    assert Power(1)(op).value == Power(1)(op).value
    assert Power(1, seed=1)(op).value != Power(1)(op).value
