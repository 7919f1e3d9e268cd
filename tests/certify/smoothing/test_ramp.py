"""Quantiles of a normal number plus a uniform one, against 40 digits; and what they prove of smoothed functions."""

from typing import Any

import mpmath
import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from lipkit.certify.smoothing.ramp import quantile_above, quantile_below, steepest

mpmath.mp.dps = 40
widths = st.sampled_from([0.0, 1e-5, 2e-3, 0.1, 1.0, 4.0, 30.0, 1e4, 1e9])
shares = st.one_of(
    st.floats(1e-12, 1 - 1e-12), st.floats(1e-279, 1e-3), st.floats(1e-15, 1e-3).map(lambda t: 1 - t), st.just(0.5)
)


def antiderivative(x: Any) -> Any:
    return x * mpmath.ncdf(x) + mpmath.npdf(x)


def distribution(q: float, width: float) -> Any:
    """M_w(q) to 40 digits; small shares need more, for the difference cancels."""
    with mpmath.workdps(400):
        middle, half = mpmath.mpf(q), mpmath.mpf(width) / 2
        if not width:
            return mpmath.ncdf(middle)
        return (antiderivative(middle + half) - antiderivative(middle - half)) / (2 * half)


def quantile(share: float, width: float) -> tuple[float, float]:
    arguments = np.array(share), np.array(width)
    return quantile_below(*arguments).item(), quantile_above(*arguments).item()


@given(share=shares, width=widths)
def test_quantiles_are_rounded_to_their_sides(share: float, width: float):
    low, high = quantile(share, width)
    # Very narrow and very wide ramps count as narrower ones, which is what the function promises.
    used = 0.0 if width < 1e-3 else min(width, 1e6)
    assert distribution(low, used) <= share <= distribution(high, used)
    # Some times the trust of 1e-12, in terms of size 1 + w, over the width that they are divided by.
    assert high - low <= 1e-10 * (1 + used + (1 / used if used else 0)) * (1 + abs(low))


def test_the_normal_distribution_is_better_than_it_is_trusted():
    """The two functions that everything rests on, against 40 digits: twenty times better than the trust in them."""
    x = np.concatenate([np.linspace(-36, 9, 901), np.random.default_rng(0).normal(size=200)])
    trust = 2.0**-40 * (1 + np.minimum(x, 0) ** 2 / 64)
    for ours, theirs in ((scipy.special.ndtr(x), mpmath.ncdf), (np.exp(-x * x / 2) / np.sqrt(2 * np.pi), mpmath.npdf)):
        true = [theirs(mpmath.mpf(at)) for at in x.tolist()]
        off = [abs(float(mpmath.mpf(a) / b - 1)) for a, b in zip(ours.tolist(), true, strict=True)]
        assert (np.array(off) < trust / 20).all()


def test_without_a_ramp_it_is_the_normal_quantile():
    p = np.linspace(0.001, 0.999, 999)
    # The trust, over the density of the normal law.
    assert quantile_below(p, np.zeros(1)) == pytest.approx(scipy.special.ndtri(p), abs=1e-9)


def test_ends_do_not_become_nan():
    low, high = quantile_below(np.array([0.0, 1.0]), np.ones(1)), quantile_above(np.array([0.0, 1.0]), np.ones(1))
    assert (low[0], high[1]) == (-np.inf, np.inf)
    assert 30 < low[1] < 40
    assert -40 < high[0] < -30


def test_printed_slopes():
    """g(p) for L = 1 and sigma = 1/4, as printed; 1 / sigma = 4 is its limit."""
    p = np.array([0.5, 0.7, 0.9, 0.99, 0.999, 0.3])
    found = steepest(p, np.array(4.0), np.zeros(1)) * 4
    assert found == pytest.approx([2.3926, 2.5025, 2.8537, 3.2597, 3.4491, 2.5025], abs=6e-5)


@given(st.floats(0.01, 50.0))
def test_slopes_rise_away_from_one_half(width: float):
    z = np.linspace(0, 8, 400)
    found = steepest(np.array(0.5), np.array(width), z)
    # Each is rounded up by less than this.
    assert (np.diff(found) >= -1e-8).all()
    assert found[-1] <= 1.0


class PiecewiseLinear:
    """A random function with values in [0, 1] and a slope of at most L, and its smoothed version, exactly."""

    def __init__(self, seed: int, slope: float, sigma: float) -> None:
        rng = np.random.default_rng(seed)
        knots = np.sort(rng.uniform(-2, 2, 12))
        values = [rng.choice([0.0, 1.0, rng.uniform()])]
        for gap in np.diff(knots):
            # Steep pieces are the interesting ones.
            values.append(np.clip(values[-1] + gap * slope * rng.choice([-1, 1, rng.uniform(-1, 1)]), 0, 1))
        slopes = np.concatenate([[0.0], np.diff(values) / np.diff(knots), [0.0]])
        self.knots, self.first, self.turns, self.sigma = knots, values[0], np.diff(slopes), sigma

    def smoothed(self, x: np.ndarray) -> np.ndarray:
        at = (x[:, None] - self.knots) / self.sigma
        hinge = at * scipy.special.ndtr(at) + np.exp(-at * at / 2) / np.sqrt(2 * np.pi)
        return self.first + self.sigma * hinge @ self.turns


@given(st.integers(0, 2**31), st.sampled_from([0.5, 2.0, 10.0]), st.sampled_from([0.1, 0.3, 1.0]))
def test_quantiles_of_smoothed_functions_are_1_lipschitz(seed: int, slope: float, sigma: float):
    """The theorem itself: sigma M_w^-1(f~) moves by at most the distance."""
    f = PiecewiseLinear(seed, slope, sigma)
    x = np.linspace(-3, 3, 301)
    values = np.clip(f.smoothed(x), 1e-9, 1 - 1e-9)
    width = np.array(1 / (slope * sigma))
    forth = quantile_below(values[1:], width) - quantile_above(values[:-1], width)
    back = quantile_below(values[:-1], width) - quantile_above(values[1:], width)
    # Values near 0 and 1 are sums of twelve terms up to 4, off by 1e-14 relative to shares of 1e-9.
    assert sigma * np.maximum(forth, back).max() <= 0.02 * (1 + 1e-6) + 1e-6


@given(st.integers(0, 2**31), st.sampled_from([0.5, 2.0, 10.0]), st.sampled_from([0.3, 1.0]))
def test_slopes_of_quantiles_on_a_ball_keep_their_bound(seed: int, slope: float, sigma: float):
    f = PiecewiseLinear(seed, slope, sigma)
    middle, radius = 0.3, 0.4
    value = np.clip(f.smoothed(np.array([middle])), 1e-9, 1 - 1e-9)
    bound = steepest(value, np.array(1 / (slope * sigma)), np.array(radius / sigma)).item() / sigma
    x = np.linspace(middle - radius, middle + radius, 201)
    z = scipy.special.ndtri(np.clip(f.smoothed(x), 1e-9, 1 - 1e-9))
    assert np.abs(np.diff(z) / np.diff(x)).max() <= bound * (1 + 1e-4)


@pytest.mark.parametrize("width", [0.2, 1.0, 4.0])
def test_a_ramp_attains_the_theorem(width: float):
    """Its own smoothed value is M_w, so its quantile moves exactly with the input."""
    x = np.linspace(-2, 2, 41)
    at = np.stack([x - width / 2, x + width / 2])
    hinge = at * scipy.special.ndtr(at) + np.exp(-at * at / 2) / np.sqrt(2 * np.pi)
    values = (hinge[1] - hinge[0]) / width
    assert quantile_below(values, np.array(width)) == pytest.approx(x, abs=1e-8)
