"""Confidence limits against exact binomial sums in rational arithmetic."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipkit.certify.confidence_intervals import clopper_pearson, lower_limit, upper_limit, wilson
from lipkit.errors import ArgumentError


def at_least(k: int, n: int, p: Fraction) -> Fraction:
    """P(X >= k), exactly."""
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)), Fraction(0))


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.9999))
def test_the_tails_are_exactly_within_their_level(counts: tuple[int, int], level: float):
    k, n = counts
    low, high = clopper_pearson(k, n, level)
    tail = (1 - Fraction(level)) / 2
    assert (low == 0) == (k == 0)
    assert (high == 1) == (k == n)
    if k:
        assert at_least(k, n, Fraction(low)) <= tail
        # And not much wider than it must be.
        assert at_least(k, n, Fraction(low) * (1 + Fraction(1, 10**8))) > tail
    if k < n:
        assert 1 - at_least(k + 1, n, Fraction(high)) <= tail
        assert 1 - at_least(k + 1, n, 1 - (1 - Fraction(high)) * (1 + Fraction(1, 10**8))) > tail


@pytest.mark.parametrize("p", [0.003, 0.1, 0.5, 0.77])
def test_coverage_is_at_least_the_level_for_every_share(p: float):
    n, share = 40, Fraction(p)
    weight = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    inside = [(limits := clopper_pearson(k, n, 0.9)).low <= p <= limits.high for k in range(n + 1)]
    assert sum(w for w, hit in zip(weight, inside, strict=True) if hit) >= Fraction(9, 10)
    one_sided = [lower_limit(k, n, 0.05) <= p for k in range(n + 1)]
    assert sum(w for w, hit in zip(weight, one_sided, strict=True) if hit) >= Fraction(95, 100)


def test_all_successes_have_a_closed_form():
    for n, failure in ((10, 1e-3), (10_000, 1e-3), (100_000, 1e-6)):
        exact = failure ** (1 / n)
        assert exact * (1 - 1e-9) <= lower_limit(n, n, failure) <= exact
        assert upper_limit(0, n, failure) >= -math.expm1(math.log(failure) / n)


def test_known_numbers():
    # Widely printed: 5 of 10 at 95 %.
    assert clopper_pearson(5, 10) == pytest.approx((0.18709, 0.81291), abs=5e-6)
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=5e-6)
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10).low == 0.0
    # A million trials are no harder.
    low, high = clopper_pearson(500_000, 1_000_000)
    assert 0.499 < low < 0.4991 < 0.5009 < high < 0.501


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match=r"0\.\.3 trials, got 4"):
        clopper_pearson(4, 3)
    with pytest.raises(ArgumentError, match=r"\(0, 1\)"):
        clopper_pearson(1, 3, 1.0)
    with pytest.raises(ArgumentError, match=r"\(0, 1\)"):
        lower_limit(1, 3, 0.0)
