"""Confidence limits of shares: coverage by simulation and enumeration, and their formulas in exact arithmetic."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from lipkit.certify import smoothing as rs
from lipkit.certify.confidence_intervals import lower_limit, lower_limits, upper_limit, upper_limits
from lipkit.certify.smoothing.statistics.votes import Votes
from lipkit.errors import ArgumentError

ANY = [rs.Hoeffding(), rs.EmpiricalBernstein()]
BINARY = [*ANY, rs.ClopperPearson(), rs.BetaBinomial()]
RUNS, LEVEL = 20_000, 0.05


def votes(values: np.ndarray) -> Votes:
    """The sums of values of shape (batch, n)."""
    x = torch.from_numpy(values)
    trials = torch.full((len(x),), x.shape[1])
    return Votes(x.sum(1, keepdim=True), x.square().sum(1, keepdim=True), trials)


def counted(k: int, n: int) -> Votes:
    total = torch.tensor([[k]], dtype=torch.float64)
    return Votes(total, total, torch.tensor([n]))


def too_often(failures: int, runs: int = RUNS, level: float = LEVEL) -> bool:
    """Whether a failure probability of `level` would show that many failures less than once in a million."""
    return bool(binom.sf(failures - 1, runs, level) < 1e-6)


def failures(interval: rs.Interval, values: np.ndarray, mean: float, level: float = LEVEL) -> tuple[int, int]:
    sums = votes(values)
    low, high = interval.lower(sums, level), interval.upper(sums, level)
    return int((low > mean).sum()), int((high < mean).sum())


def bernoulli(rng: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    return (rng.random((RUNS, n)) < 0.07).astype(float), 0.07


def beta(rng: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    return rng.beta(6.0, 2.0, (RUNS, n)), 0.75


def ramp(rng: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    """A ramp of slope 0.1 of a standard normal number: it is clipped beyond five deviations, alike on both sides."""
    return np.clip(0.5 + 0.1 * rng.standard_normal((RUNS, n)), 0, 1), 0.5


@pytest.mark.parametrize(
    ("law", "interval"),
    [(bernoulli, one) for one in BINARY]
    + [(beta, one) for one in ANY]
    + [(ramp, one) for one in (*ANY, rs.SubGaussian(0.1))],
)
@pytest.mark.parametrize("n", [20, 150])
def test_each_side_fails_no_more_often_than_it_says(law, interval: rs.Interval, n: int):
    values, mean = law(np.random.default_rng(n), n)
    below, above = failures(interval, values, mean)
    assert not too_often(below)
    assert not too_often(above)


def test_half_the_constant_of_lipschitz_votes_would_not_do():
    # The mean of n votes has deviation 0.1/sqrt(n); 2.45 of them are allowed, and 1.22 would be exceeded in 11 %.
    values, mean = ramp(np.random.default_rng(0), 150)
    assert too_often(failures(rs.SubGaussian(0.05), values, mean)[0])


def test_a_bernstein_limit_needs_its_second_term():
    # With a share of 0.07 and 20 votes, a quarter of all runs see no vote at all, and no variance.
    values, mean = bernoulli(np.random.default_rng(20), 20)
    sums = votes(values)
    term = 7 * math.log(2 / LEVEL) / (3 * 19)
    assert too_often(int((rs.EmpiricalBernstein().upper(sums, LEVEL) - term < mean).sum()))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=50), st.floats(1e-9, 0.5))
def test_one_root_over_both_terms_would_be_of_a_negative_number(values: list[float], failure: float):
    # As printed for LVM-RS, even with the unbiased variance: it is at most n/(4(n - 1)), so 1/2 < 7/3 decides.
    n, variance, log = len(values), float(np.var(values, ddof=1)), math.log(2 / failure)
    assert 2 * variance * log / n - 7 * log / (3 * (n - 1)) < 0
    assert 0 <= rs.EmpiricalBernstein().lower(votes(np.array([values])), failure).item() <= np.mean(values) + 1e-15


def test_known_widths():
    # 000:E75: votes that all agree, a = 1e-4.
    for n, bernstein, hoeffding in ((10_000, 0.00231, 0.0215), (100, 0.233, 0.215)):
        agree = counted(n, n)
        assert 1 - rs.EmpiricalBernstein().lower(agree, 1e-4).item() == pytest.approx(bernstein, rel=5e-3)
        assert 1 - rs.Hoeffding().lower(agree, 1e-4).item() == pytest.approx(hoeffding, rel=5e-3)
    assert rs.SubGaussian(3.0).lower(counted(5, 9), 0.1) == rs.Hoeffding().lower(counted(5, 9), 0.1)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(1e-9, 0.5))
def test_limits_lie_outside_of_the_formula_in_exact_arithmetic(values: list[float], failure: float):
    n, exact = len(values), [Fraction(v) for v in values]
    mean = sum(exact, Fraction(0)) / n
    variance = sum(((v - mean) ** 2 for v in exact), Fraction(0)) / (n - 1)
    sums = votes(np.array([values]))
    with mpmath.workdps(40):
        middle = mpmath.mpf(mean.numerator) / mean.denominator
        log = mpmath.log(2 / mpmath.mpf(failure))
        spread = mpmath.mpf(variance.numerator) / variance.denominator
        widths = {
            rs.EmpiricalBernstein(): mpmath.sqrt(2 * spread * log / n) + 7 * log / (3 * (n - 1)),
            rs.Hoeffding(): mpmath.sqrt(-mpmath.log(mpmath.mpf(failure)) / (2 * n)),
        }
        for interval, width in widths.items():
            low, high = interval.lower(sums, failure).item(), interval.upper(sums, failure).item()
            assert low <= max(middle - width, 0)
            assert high >= min(middle + width, 1)
            # The root of a variance near 0 makes 1e-8 of a rounding of 1e-16.
            assert low >= min(middle - width, 1) - mpmath.mpf(10) ** -6
            assert high <= max(middle + width, 0) + mpmath.mpf(10) ** -6


def test_the_roundings_of_a_long_sum_are_counted():
    # The sum of a million times 0.1, one after the other, is off by a hundred thousand units in its last place.
    n = 10**6
    for value in (0.1, 0.7):
        total = torch.tensor([[np.full(n, value).cumsum()[-1]]])
        squares = torch.tensor([[np.full(n, value**2).cumsum()[-1]]])
        votes, interval = Votes(total, squares, torch.tensor([n])), rs.SubGaussian(0.0)
        assert abs(total.item() / n - value) > 1e-13
        assert interval.lower(votes, 0.5).item() <= value <= interval.upper(votes, 0.5).item()


def test_limits_of_many_counts_are_those_of_each():
    k = np.array([[0, 3, 7, 7], [10, 2, 0, 1]])
    n = np.array([[7], [10]])
    low, high = lower_limits(k, n, 0.01), upper_limits(k, n, 0.01)
    for i, j in np.ndindex(k.shape):
        assert low[i, j] == lower_limit(int(k[i, j]), int(n[i, 0]), 0.01)
        assert high[i, j] == upper_limit(int(k[i, j]), int(n[i, 0]), 0.01)
    assert lower_limits(k[:0], n[:0], 0.01).shape == (0, 4)
    with pytest.raises(ArgumentError, match=r"0\.\.7 trials, got 8"):
        lower_limits(np.array([1, 8]), np.array([7, 7]), 0.01)


def capital(k: int, n: int, m: float) -> Any:
    """The capital of the uniform bettor, by numerical integration."""
    low, peak = mpmath.mpf(m), mpmath.mpf(k) / n
    total: Any = mpmath.quad(lambda t: (t / low) ** k * ((1 - t) / (1 - low)) ** (n - k), [low, (low + peak) / 2, 1])
    return total / (1 - low)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 9), (5, 10), (29, 30), (40, 40), (150, 200)])
def test_the_capital_of_bets_reaches_its_goal_exactly_at_the_limit(k: int, n: int):
    with mpmath.workdps(30):
        low = rs.BetaBinomial().lower(counted(k, n), 0.01).item()
        assert capital(k, n, low) >= 100
        assert capital(k, n, low * (1 + 1e-9)) < 100
        high = rs.BetaBinomial().upper(counted(n - k, n), 0.01).item()
        assert high == pytest.approx(1 - low, abs=1e-15)


def ever(limits: np.ndarray, share: float) -> float:
    """The probability that the limit after some vote is above the share, exactly: `limits[n, k]`."""
    alive, failed = np.zeros(limits.shape[1]), 0.0
    alive[0] = 1.0
    for above in limits[1:] > share:
        alive = (1 - share) * alive + share * np.concatenate([[0.0], alive[:-1]])
        failed += alive[above].sum()
        alive[above] = 0.0
    return failed


def test_limits_at_all_times_together_fail_no_more_often_than_they_say():
    n = torch.arange(101)
    k = torch.minimum(n[None], n[:, None]).double()
    bets, fixed = (one.lower(Votes(k, k, n), LEVEL).numpy() for one in (rs.BetaBinomial(), rs.ClopperPearson()))
    for share in (0.05, 0.3, 0.5, 0.9):
        assert ever(bets, share) <= LEVEL
        # Looking again and again at limits for a fixed n is what it guards against.
        assert ever(fixed, share) > LEVEL


@pytest.mark.parametrize("law", [bernoulli, beta, ramp])
def test_bets_on_values_cover_the_mean(law):
    values, mean = law(np.random.default_rng(3), 60)
    runs = 400
    found = [rs.betting_interval(torch.from_numpy(row), 2 * LEVEL) for row in values[:runs]]
    assert not too_often(sum(one.low > mean for one in found), runs)
    assert not too_often(sum(one.high < mean for one in found), runs)


def test_a_bet_knows_the_values_before_it_alone():
    # Spread enough that bets are below their cap.
    values, goal = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 0.05

    def most(m: float) -> float:
        capital, best, seen, spread = 1.0, 0.0, 0.5, 0.25
        for t, x in enumerate(values.tolist(), start=1):
            variance = spread / t
            capital *= 1 + min(math.sqrt(2 * math.log(2 / goal) / (len(values) * variance)), 0.5 / m) * (x - m)
            best = max(best, capital)
            seen += x
            spread += (x - seen / (t + 1)) ** 2
        return best

    low = rs.betting_interval(values, goal).low
    # The limit is found by halving, up to 1e-12.
    assert most(low) >= 2 / goal * (1 - 1e-9)
    assert most(low + 1e-9) < 2 / goal


def test_bets_win_against_moments():
    values = np.random.default_rng(5).beta(30.0, 3.0, 2000)
    found = rs.betting_interval(torch.from_numpy(values), 0.01)
    sums = votes(values[None])
    bernstein = rs.EmpiricalBernstein()
    assert bernstein.lower(sums, 0.005) < found.low < 30 / 33 < found.high < bernstein.upper(sums, 0.005)
    assert found.high - found.low < 0.75 * (bernstein.upper(sums, 0.005) - bernstein.lower(sums, 0.005)).item()
    assert rs.betting_interval(torch.zeros(0), 0.1) == (0.0, 1.0)


@pytest.mark.parametrize("interval", [*BINARY, rs.SubGaussian(0.2)])
def test_no_votes_say_nothing(interval: rs.Interval):
    assert interval.lower(counted(0, 0), 0.1).item() == 0.0
    assert interval.upper(counted(0, 0), 0.1).item() == 1.0


def test_wrong_arguments_are_named():
    soft = votes(np.array([[0.5, 0.5]]))
    for interval in (rs.ClopperPearson(), rs.BetaBinomial()):
        with pytest.raises(ArgumentError, match="votes that are 0 or 1"):
            interval.lower(soft, 0.1)
    with pytest.raises(ArgumentError, match=r"values in \[0, 1\]"):
        rs.betting_interval(torch.tensor([0.5, 1.5]), 0.1)
    with pytest.raises(ArgumentError, match="a number >= 0"):
        rs.SubGaussian(math.nan)
    with pytest.raises(ArgumentError, match=r"\(0, 1\)"):
        rs.Hoeffding().lower(soft, 0.0)
