"""Accountants against printed figures, high-precision integrals and each other."""

import importlib.util
import math

import mpmath
import pytest

from lipkit.errors import ArgumentError, NotProvenError, UnsupportedError
from lipkit.privacy import (
    PLD,
    RDP,
    Conversion,
    Gaussian,
    RandomRuns,
    Releases,
    epsilon,
    most_repetitions,
    tuned_epsilon,
)
from lipkit.privacy.accounting.budget import least_sigma
from lipkit.privacy.accounting.renyi import INTEGER_ORDERS
from lipkit.privacy.accounting.sampled_gaussian import log_moment

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)

PRINTED = [
    (1 / 60, 2.0, 5400, "2.9706154002", "3.40295"),
    (0.2, 4.0, 1325, "9.9762979527", "10.81091"),
    (256 / 60000, 1.12, 14063, "2.52156", "2.92235"),
    (0.01, 1.0, 10000, "6.71940", "7.46918"),
    (0.05, 3 / math.sqrt(6), 1000, "8.44450", None),
    (0.05, 3.0, 1000, "2.42500", None),
]


def same_digits(value: float, printed: str) -> bool:
    return f"{value:.{len(printed.partition('.')[2])}f}" == printed


@pytest.mark.parametrize(("rate", "sigma", "steps", "tight", "classical"), PRINTED)
def test_whole_orders_give_the_printed_epsilons(rate, sigma, steps, tight, classical):
    assert same_digits(epsilon(rate, sigma, steps, 1e-5, RDP(INTEGER_ORDERS)), tight)
    if classical:
        assert same_digits(epsilon(rate, sigma, steps, 1e-5, RDP(INTEGER_ORDERS, Conversion.CLASSICAL)), classical)


@pytest.mark.parametrize(
    ("rate", "sigma", "order"),
    [(0.2, 4.0, 3.4), (0.2, 4.0, 3.0), (0.01, 1.0, 2.7), (0.5, 0.5, 1.1), (1e-3, 5.0, 7.5), (0.3, 0.05, 2.5)],
)
def test_moments_are_upper_bounds_of_the_integral(rate: float, sigma: float, order: float):
    with mpmath.workdps(30):
        p, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(order)

        def integrand(z):
            return mpmath.npdf(z, 0, s) * (1 - p + p * mpmath.exp((2 * z - 1) / (2 * s * s))) ** a

        ends = [-30 * s, -5 * s, 0, 5 * s, 1, a - 5 * s, a, a + 5 * s, a + 30 * s]
        truth = float(mpmath.log(mpmath.quad(integrand, sorted(ends))))
    found = log_moment(rate, sigma, order)
    assert found >= truth * (1 - 1e-14)
    # The slack for roundings is 1e-10 at most; the chord, for little noise, is within a tenth.
    assert found <= truth * (1.1 if sigma < 0.1 else 1 + 1e-10)


def test_fractional_orders_lower_epsilon():
    assert same_digits(epsilon(1 / 60, 2.0, 5400, 1e-5, RDP()), "2.96208")
    assert same_digits(epsilon(1 / 60, 2.0, 5460, 1e-5, RDP()), "2.98015")
    assert same_digits(epsilon(256 / 60000, 1.12, 14063, 1e-5, RDP()), "2.51869")
    assert same_digits(epsilon(0.05, 3.0, 1000, 1e-5, RDP()), "2.42193")
    assert same_digits(epsilon(1.0, 1.0, 1, 1e-5, RDP()), "4.72851")


@needs_library
@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "printed"),
    [(1 / 60, 2.0, 5400, "2.72546"), (1 / 60, 2.0, 5460, "2.74229"), (0.2, 4.0, 1325, "9.13711"),
     (256 / 60000, 1.12, 14063, "2.31028"), (0.05, 3.0, 1000, "2.22311"), (1.0, 1.0, 1, "4.37718")],
)  # fmt: skip
def test_loss_distributions_give_the_known_epsilons(rate: float, sigma: float, steps: int, printed: str):
    found = epsilon(rate, sigma, steps, 1e-5, PLD())
    assert same_digits(found, printed)
    assert found <= epsilon(rate, sigma, steps, 1e-5, RDP())


@needs_library
def test_the_closed_form_agrees_with_loss_distributions_at_rate_1():
    exact = epsilon(1.0, 40.0, 600, 1e-5, Gaussian())
    assert same_digits(exact, "2.501740")
    # PLD rounds losses up to a grid of 1e-4.
    assert exact <= epsilon(1.0, 40.0, 600, 1e-5, PLD()) <= exact + 1e-6


def test_the_closed_form_solves_its_equation():
    for steps, sigma in ((1, 1.0), (600, 40.0), (3, 0.4)):
        e, mu = epsilon(1.0, sigma, steps, 1e-5, Gaussian()), math.sqrt(steps) / sigma
        with mpmath.workdps(30):
            delta = mpmath.ncdf(-e / mu + mu / 2) - mpmath.exp(e) * mpmath.ncdf(-e / mu - mu / 2)
        assert 1e-5 * (1 - 1e-8) <= delta <= 1e-5


def test_noise_is_found_on_the_safe_side():
    for wanted, mu in ((1.0, 0.26805), (3.0, 0.71912), (8.0, 1.66603)):
        sigma = least_sigma(lambda s: [Releases(1.0, s, 1)], wanted, 1e-5, Gaussian())
        assert epsilon(1.0, sigma, 1, 1e-5, Gaussian()) <= wanted
        assert epsilon(1.0, sigma * (1 - 2e-5), 1, 1e-5, Gaussian()) > wanted
        assert 1 / sigma == pytest.approx(mu, rel=3e-5)


def test_the_longest_training_with_a_query_an_epoch():
    epoch = [Releases(0.05, 3 / math.sqrt(6), 20), Releases(0.05, 15.0, 1)]
    assert most_repetitions(epoch, 8.0, 1e-5, RDP(INTEGER_ORDERS)) == 45
    assert most_repetitions(epoch, 20.0, 1e-5, RDP(INTEGER_ORDERS)) == 208


@needs_library
def test_tuning_costs():
    run = [Releases(4096 / 60000, 3.0, 600)]
    found = [tuned_epsilon(run, 1e-5, RandomRuns(10.0, shape)) for shape in (0.0, 1.0, math.inf)]
    assert [f"{one:.2f}" for one in found] == ["4.29", "5.04", "5.75"]


def test_what_cannot_be_accounted_for_is_refused():
    with pytest.raises(UnsupportedError, match=r"rate 1 and not at 0\.5"):
        epsilon(0.5, 1.0, 1, 1e-5, Gaussian())
    for rate, sigma, steps, delta in ((0.0, 1.0, 1, 0.1), (1.5, 1.0, 1, 0.1), (0.5, 0.0, 1, 0.1),
                                      (0.5, math.nan, 1, 0.1),
                                      (0.5, 1.0, -1, 0.1), (0.5, 1.0, 1, 0.0), (0.5, 1.0, 1, 1.0)):  # fmt: skip
        with pytest.raises(ArgumentError):
            epsilon(rate, sigma, steps, delta, RDP())


def test_whole_numbers_of_runs_are_written_as_they_are_read():
    # A report holds the mean by its digits, and an audit that reads 27.0 does not find 27.
    runs = RandomRuns(27, 1)
    assert (str(runs.mean), str(runs.shape)) == ("27.0", "1.0")


@needs_library
def test_noise_whose_losses_fill_the_memory_is_refused_in_a_sentence():
    # The grid would have 5e12 entries.
    with pytest.raises(NotProvenError, match="too large for a grid"):
        epsilon(0.1, 1e-5, 1, 1e-5, PLD())
    assert epsilon(1.0, 0.05, 1, 1e-5, PLD()) == pytest.approx(epsilon(1.0, 0.05, 1, 1e-5, Gaussian()), rel=1e-3)
