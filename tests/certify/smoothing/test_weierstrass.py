"""The Weierstrass transform and its derivatives, on functions whose smoothed versions are known."""

import math

import pytest
import torch
from torch import Tensor

from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError, ShapeError

X = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
# Means of fixed seeds are within five standard errors of the truth; by chance one in a million is not.
SPREAD = 5.0


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_near(found: rs.SampleMean, true: Tensor) -> None:
    assert found.mean.shape == found.standard_error.shape == true.shape
    assert bool(((found.mean - true).abs() <= SPREAD * found.standard_error + 1e-12).all())


def test_quadratics_rise_by_the_variance_of_the_noise():
    found = rs.smooth(lambda x: x.square().sum(-1), X, 0.5, 20_000, source())
    assert_near(found, X.square().sum(-1) + 3 * 0.5**2)
    # Var |x + sigma Z|^2 = 4 sigma^2 |x|^2 + 2 d sigma^4.
    expected = ((4 * 0.25 * X.square().sum(-1) + 6 * 0.5**4) / 20_000).sqrt()
    torch.testing.assert_close(found.standard_error, expected, rtol=0.05, atol=0)


def test_large_values_do_not_hide_their_spread():
    plain = rs.smooth(lambda x: x[:, 0], X, 0.5, 1000, source())
    raised = rs.smooth(lambda x: x[:, 0] + 1e9, X, 0.5, 1000, source())
    torch.testing.assert_close(raised.standard_error, plain.standard_error, rtol=1e-5, atol=0)


@pytest.mark.parametrize("antithetic", [True, False])
def test_gradients_of_linear_and_quadratic_functions(antithetic: bool):
    slope = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    found = rs.stein_gradient(lambda x: x @ slope + 4, X, 0.5, 20_000, source(), antithetic=antithetic)
    assert_near(found, slope.expand(2, 3))
    curved = rs.stein_gradient(lambda x: x.square().sum(-1), X, 0.5, 20_000, source(), antithetic=antithetic)
    assert_near(curved, 2 * X)


def test_the_bound_of_a_smoothed_sign_is_attained():
    """f = sign(x_1) has |f| <= 1, and its smoothed version the slope sqrt(2/pi)/sigma at 0."""
    found = rs.stein_gradient(lambda x: x[:, 0].sign(), X[1:], 0.5, 50_000, source())
    slope = rs.smoothed_lipschitz(None, 0.5, rule=rs.Salman()).value.item()
    assert_near(found, torch.tensor([[slope, 0.0, 0.0]], dtype=torch.float64))
    assert slope == pytest.approx(math.sqrt(2 / math.pi) / 0.5)


def test_jacobians_of_images_keep_their_shape():
    x = torch.randn(2, 1, 2, 3, generator=source(1), dtype=torch.float64)
    matrix = torch.randn(4, 6, generator=source(2), dtype=torch.float64)
    found = rs.stein_jacobian(lambda at: at.flatten(1) @ matrix.T, x, 0.3, 40_000, source())
    assert_near(found, matrix.reshape(1, 4, 1, 2, 3).expand(2, -1, -1, -1, -1))


def test_pairs_of_opposite_noise_remove_the_variance_of_even_parts():
    """f = 1 + x^2 at 0 is even: its pairs cancel exactly, single samples scatter."""

    def even(x: Tensor) -> Tensor:
        return 1 + x.square().sum(-1)

    pairs = rs.stein_gradient(even, X[1:], 0.5, 2000, source())
    single = rs.stein_gradient(even, X[1:], 0.5, 2000, source(), antithetic=False)
    assert bool((pairs.standard_error == 0).all())
    assert bool((single.standard_error > 0.05).all())


def test_standard_errors_are_those_of_repetitions():
    runs = [rs.stein_gradient(lambda x: x.sin().sum(-1), X[:1], 0.7, 200, source(seed)) for seed in range(300)]
    spread = torch.stack([run.mean for run in runs]).std(0)
    claimed = torch.stack([run.standard_error for run in runs]).mean(0)
    # The standard deviation of 300 runs is known to about 4 %.
    torch.testing.assert_close(spread, claimed, rtol=0.15, atol=0)


def test_blocks_bound_how_much_is_evaluated_at_a_time():
    sizes = []

    def f(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x.square()

    found = rs.smooth(f, X, 0.5, 2000, source(), block=7)
    assert max(sizes) == 6
    assert sum(sizes) == 2 * 2001
    assert_near(found, X.square() + 0.25)
    assert_near(rs.stein_jacobian(f, X, 0.5, 2000, source(), block=7), (2 * X).diag_embed())


def test_what_cannot_be_estimated_is_refused():
    with pytest.raises(ArgumentError, match="Antithetic samples come in pairs, got n = 7"):
        rs.stein_gradient(lambda x: x[:, 0], X, 0.5, 7, source())
    with pytest.raises(ArgumentError, match="needs two independent samples, got 1"):
        rs.stein_gradient(lambda x: x[:, 0], X, 0.5, 2, source())
    with pytest.raises(ArgumentError, match=r"finite number > 0, got 0\.0"):
        rs.smooth(lambda x: x, X, 0.0, 10, source())
    with pytest.raises(ShapeError, match="A Jacobian is of a vector for each input"):
        rs.stein_jacobian(lambda x: x[:, 0], X, 0.5, 10, source())
