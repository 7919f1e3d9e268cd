"""Mixtures of Gaussians: draws against the closed form of their law, the density against scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from lipkit.data import GaussianMixture, from_mixtures, two_modes
from lipkit.errors import ArgumentError, ShapeError

PLANE = GaussianMixture(((0.0, 1.0), (3.0, -2.0), (-1.0, -1.0)), (0.5, 1.5, 0.2), (0.2, 0.5, 0.3))


def test_the_density_is_scipys():
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 2)) * 3)
    truth = sum(
        weight * stats.norm.pdf(points.numpy(), mean, deviation).prod(1)
        for mean, deviation, weight in zip(PLANE.means, PLANE.deviations, PLANE.weights, strict=True)
    )
    # A dozen operations in float64 on logarithms up to a few hundred.
    np.testing.assert_allclose(PLANE.log_density(points).exp().numpy(), truth, rtol=1e-12)


def test_the_density_far_away_does_not_underflow():
    law = GaussianMixture(((0.0,),), (1.0,), (1.0,))
    far = torch.tensor([[1000.0]], dtype=torch.float64)
    assert float(law.log_density(far)) == pytest.approx(-500_000 - 0.5 * math.log(2 * math.pi), rel=1e-15)


def test_draws_have_the_mean_and_the_covariance_of_the_law():
    count = 100_000
    drawn = PLANE.draw(count, seed=4).numpy()
    means, weights, squares = np.array(PLANE.means), np.array(PLANE.weights), np.square(PLANE.deviations)
    mean = weights @ means
    covariance = (means - mean).T @ np.diag(weights) @ (means - mean) + weights @ squares * np.eye(2)
    # Five deviations of an average; fourth moments of this law are below 20 times the squared variance.
    scale = math.sqrt(covariance.max() / count)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * scale)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=5 * covariance.max() * math.sqrt(20 / count))


@pytest.mark.parametrize("name", ["P", "Q"])
def test_the_two_modes_on_the_line(name: str):
    law, sign = two_modes()[name], {"P": 1, "Q": -1}[name]
    drawn = sign * law.draw(20_000, seed=1)[:, 0].numpy()
    truth = lambda x: 0.9 * stats.norm.cdf(x, -2, 0.3) + 0.1 * stats.norm.cdf(x, 1, 0.1)  # noqa: E731
    # One seed, so this either always holds or never; a wrong weight of .11 has a p-value below 1e-5.
    assert stats.kstest(drawn, truth).pvalue > 1e-3
    assert stats.kstest(-drawn, truth).pvalue < 1e-9


def test_p_mirrored_is_q():
    points = torch.linspace(-4, 4, 101, dtype=torch.float64)[:, None]
    laws = two_modes()
    assert list(laws) == ["Q", "P"]
    torch.testing.assert_close(laws["P"].log_density(points), laws["Q"].log_density(-points), rtol=0, atol=0)


def test_examples_of_classes():
    far = {name: GaussianMixture(((place,),), (0.1,), (1.0,)) for name, place in [("a", 0.0), ("b", 10.0), ("c", 20.0)]}
    found = from_mixtures(far, 101, seed=2)
    assert found.classes == ("a", "b", "c")
    assert torch.bincount(found.labels).tolist() == [34, 34, 33]
    # A hundred deviations lie between the classes.
    assert torch.equal((found.inputs[:, 0] / 10).round().long(), found.labels)
    assert len(set(found.labels[:10].tolist())) > 1
    assert torch.equal(found.inputs, from_mixtures(far, 101, seed=2).inputs)
    assert not torch.equal(found.inputs, from_mixtures(far, 101, seed=3).inputs)


def test_classes_of_one_law_are_drawn_independently():
    law = GaussianMixture(((0.0,),), (1.0,), (1.0,))
    found = from_mixtures({"a": law, "b": law}, 20, seed=0)
    assert len(found.inputs.unique()) == 20


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        (((), (), ()), ShapeError, "a mean, a deviation and a weight for each component, got 0, 0 and 0"),
        ((((0.0,),), (1.0, 2.0), (1.0,)), ShapeError, "got 1, 2 and 1"),
        ((((0.0,), (0.0, 1.0)), (1.0, 1.0), (0.5, 0.5)), ShapeError, "one space"),
        ((((math.nan,),), (1.0,), (1.0,)), ArgumentError, "Means are finite"),
        ((((0.0,),), (0.0,), (1.0,)), ArgumentError, "Deviations are positive"),
        ((((0.0,), (1.0,)), (1.0, 1.0), (0.5, 0.4)), ArgumentError, "add up to 1"),
        ((((0.0,), (1.0,)), (1.0, 1.0), (1.5, -0.5)), ArgumentError, "Weights are positive"),
    ],
)
def test_nonsense_is_refused(arguments: tuple, error: type[Exception], complaint: str):
    with pytest.raises(error, match=complaint):
        GaussianMixture(*arguments)


def test_classes_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="got 1 for 2"):
        from_mixtures(two_modes(), 1, 0)
    with pytest.raises(ShapeError, match=r"dimensions \[1, 2\]"):
        from_mixtures({**two_modes(), "R": PLANE}, 9, 0)
    with pytest.raises(ShapeError, match=r"lives in R\^2, got points of R\^1"):
        PLANE.log_density(torch.zeros(1, 1, dtype=torch.float64))
