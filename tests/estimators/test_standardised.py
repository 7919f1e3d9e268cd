"""Scales of columns: medians by scipy, slopes by differences, rounding by long numbers."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from lipkit.errors import ArgumentError
from lipkit.estimators import OneClassSDF
from lipkit.estimators.standardised import Standardise, standardise

# scipy divides by it: the median of |z| for a standard normal z.
NORMAL = float(stats.norm.ppf(0.75))


def heavy(count: int = 200, seed: int = 0) -> np.ndarray:
    """Columns of many orders of magnitude, on both sides of zero."""
    draw = np.random.default_rng(seed)
    return draw.choice([-1.0, 1.0], (count, 3)) * np.exp(draw.normal(size=(count, 3)) * [1.0, 3.0, 5.0])


def test_medians_are_those_of_scipy_and_outliers_do_not_move_them():
    rows = heavy()
    found = standardise(rows, robust=True)
    # Both divide by the same quartile of a normal law, in float64.
    np.testing.assert_allclose(1 / found.factor, stats.median_abs_deviation(rows, scale=NORMAL), rtol=1e-14)
    np.testing.assert_allclose(found.mean, np.median(rows, axis=0), rtol=0)
    spoilt = np.random.default_rng(0).normal(size=(1000, 2))
    spoilt[:100] = 1e9
    kept, lost = standardise(spoilt, robust=True), standardise(spoilt)
    # Of normal columns of deviation 1 a tenth is spoilt, which moves quantiles by about 0.2.
    assert bool((kept.factor - 1).abs().max() < 0.3)
    assert bool((lost.factor < 1e-8).all())


def test_columns_with_one_value_in_half_of_the_rows_are_refused():
    rows = np.random.default_rng(1).normal(size=(100, 2))
    rows[:51, 1] = 0.0
    with pytest.raises(ArgumentError, match=r"Column 1 of X has one value in half .* robust=False"):
        OneClassSDF(nearest=1.0, robust=True).fit(rows)
    assert float(standardise(rows).factor[1]) == pytest.approx(1 / float(rows[:, 1].std()), rel=1e-14)


def test_a_scale_with_logarithms_is_asinh_within_its_stated_rounding():
    # Around zero, at ordinary sizes, and where squares overflow.
    first = Standardise(torch.tensor([0.3, -2.0]).double(), torch.tensor([3.0, 0.7]).double(), logarithmic=True)
    sizes = torch.tensor([1e-300, 1e-9, 0.3, 1.0, 17.0, 1e9, 1e200], dtype=torch.float64)
    x = torch.cat([sizes, -sizes])[:, None].expand(-1, 2) + first.mean
    found = first(x)
    with mpmath.workdps(60):
        for row, value, moved in zip(x.tolist(), found.tolist(), first.moved(found).tolist(), strict=True):
            parts = zip(row, first.mean.tolist(), first.factor.tolist(), value, strict=True)
            gaps = [mpmath.asinh((mpmath.mpf(a) - mpmath.mpf(m)) * mpmath.mpf(f)) - v for a, m, f, v in parts]
            assert mpmath.sqrt(sum(gap**2 for gap in gaps)) <= moved


@pytest.mark.parametrize(("nearest", "robust"), [(0.0, False), (0.5, True), (1.0, False), (1.0, True)])
def test_constants_of_scales_with_logarithms_hold_and_are_reached(nearest: float, robust: bool):
    rows = heavy()
    detector = OneClassSDF(
        nearest=nearest, robust=robust, logarithmic=True, widths=(8, 8), steps=20, random_state=0
    ).fit(rows)
    spread = stats.median_abs_deviation(rows, scale=NORMAL) if robust else rows.std(0)
    constant = float(detector.bound_.value)
    # The network has constant 1 up to float32.
    assert constant == pytest.approx(1 / spread.min(), rel=1e-4)
    # Near the center slopes are largest; far away they are tiny.
    center = np.median(rows, axis=0) if robust else rows.mean(0)
    near = center + np.random.default_rng(2).normal(size=(500, 3)) * spread
    for x in (near, heavy(500, 3)):
        other = x + np.random.default_rng(4).normal(size=x.shape) * spread * 0.01
        slopes = np.abs(detector.score_samples(x) - detector.score_samples(other)) / np.linalg.norm(x - other, axis=1)
        # Scores are rounded in float64, and so are differences of 1e-2 of them.
        assert slopes.max() <= constant * (1 + 1e-9)
    if nearest == 1:
        # The distance has slope 1, so near the center, along the column with the smallest spread, it is the constant.
        gradient = detector.field_.gradient(torch.from_numpy(near)).norm(dim=1).max()
        assert float(gradient) > 0.8 * constant
    found = detector.field_.measure(torch.from_numpy(near))
    assert np.all(np.abs(found.value.numpy() - detector.score_samples(near)) <= 2 * found.error.numpy())


def test_a_state_keeps_the_scale():
    detector = OneClassSDF(nearest=1.0, robust=True, logarithmic=True).fit(heavy())
    stored = OneClassSDF.from_state(*detector.to_state())
    assert np.array_equal(stored.score_samples(heavy(50, 1)), detector.score_samples(heavy(50, 1)))
    inner = (heavy() - np.median(heavy(), 0)) / stats.median_abs_deviation(heavy(), scale=NORMAL)
    query = (heavy(50, 1) - np.median(heavy(), 0)) / stats.median_abs_deviation(heavy(), scale=NORMAL)
    exact = np.linalg.norm(np.arcsinh(query)[:, None] - np.arcsinh(inner)[None], axis=2).min(1)
    # Sums of three squares in float64.
    np.testing.assert_allclose(stored.score_samples(heavy(50, 1)), 0.05 - exact, atol=1e-12)


@pytest.mark.parametrize("change", [{"robust": True}, {"logarithmic": True}])
def test_ways_to_standardise_need_standardised_columns(change: dict[str, bool]):
    for left in (OneClassSDF(standardise=False), OneClassSDF(network=torch.nn.Linear(3, 1))):
        with pytest.raises(ArgumentError, match="=True is a way to standardise"):
            left.set_params(**change).fit(heavy())
    assert math.isfinite(OneClassSDF(nearest=1.0).set_params(**change).fit(heavy()).offset_)
