"""Epsilon from noise, noise from epsilon, and the longest training that a budget allows."""

import math
from collections.abc import Callable, Sequence

from lipkit.errors import ArgumentError, NotProvenError
from lipkit.privacy.accounting._base import Accountant, Releases, check_epsilon
from lipkit.privacy.accounting.loss_distributions import PLD

# The search for sigma ends when its interval is narrower than this share: epsilon moves by about twice that.
_NARROW = 1e-5
_ROUNDS = 60
_LARGEST_SIGMA = 1e6
_MOST = 2**31


def epsilon(rate: float, sigma: float, steps: int, delta: float, accountant: Accountant = PLD()) -> float:
    """The epsilon at `delta` of so many Gaussian releases on Poisson batches, rounded up.

        privacy.epsilon(rate=0.01, sigma=1.1, steps=1000, delta=1e-5)

    Guarantee: that of the accountant. The relation is add or remove one record, with all four numbers fixed.

    Args:
        rate: The probability with which each record is in a batch; 1 for whole batches.
        sigma: The noise multiplier.
        steps: The number of releases.
        delta: Below 1/records.
        accountant: `PLD()` (needs dp-accounting), `RDP()`, or at rate 1 `Gaussian()`.
    """
    return accountant.epsilon([Releases(rate, sigma, steps)], delta)


def least_sigma(
    releases: Callable[[float], Sequence[Releases]], epsilon: float, delta: float, accountant: Accountant
) -> float:
    """The least sigma, up to a share of 1e-5, for which the accountant proves `epsilon`; always on the safe side.

    The search keeps an interval whose upper end was seen to cost at most epsilon, and returns that end. Cost: about 12
    calls of the accountant.
    """
    epsilon = check_epsilon(epsilon)

    def excess(sigma: float) -> float:
        found = accountant.epsilon(releases(sigma), delta)
        # Epsilon is nearly a power of sigma, so logarithms make it nearly a line.
        return math.log(max(found, 1e-300)) - math.log(epsilon)

    low, high = 1.0, 1.0
    at_low = at_high = excess(1.0)
    while at_high > 0.0:
        low, at_low = high, at_high
        high *= 2
        if high > _LARGEST_SIGMA:
            raise NotProvenError(f"No sigma up to {_LARGEST_SIGMA:g} gives epsilon {epsilon}; take fewer steps.")
        at_high = excess(high)
    while at_low <= 0.0:
        high, at_high = low, at_low
        low /= 2
        at_low = excess(low)
    return _safe_end(excess, (low, at_low), (high, at_high))


def _safe_end(excess: Callable[[float], float], start: tuple[float, float], end: tuple[float, float]) -> float:
    """Regula falsi in logarithms with a bisection where one end stays; returns the end where `excess` is at most 0."""
    (low, at_low), (high, at_high) = start, end
    for turn in range(_ROUNDS):
        if high / low <= 1 + _NARROW:
            break
        share = 0.5 if turn % 3 == 2 else at_low / (at_low - at_high)
        # Never at an end, so that the interval shrinks from both sides.
        margin = 0.4 * _NARROW / math.log(high / low)
        share = min(max(share, margin), 1 - margin)
        middle = low * (high / low) ** share
        # A guess that falls on the root leaves its other side wide: the next is just beyond.
        at_middle = excess(middle)
        if at_middle > 0.0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return high


def most_repetitions(period: Sequence[Releases], epsilon: float, delta: float, accountant: Accountant = PLD()) -> int:
    """How many times `period`, such as the releases of one epoch, can be repeated within `epsilon`.

    Epsilon never falls with more releases, so a bisection finds it. Guarantee: the accountant proves at most `epsilon`
    for the number returned, which may be 0. Cost: about twice the binary digits of the answer in calls.
    """
    epsilon = check_epsilon(epsilon)
    if not any(one.steps for one in period):
        raise ArgumentError("A period has at least one release, got none; it could be repeated for ever.")

    def fits(times: int) -> bool:
        return (
            accountant.epsilon([Releases(one.rate, one.sigma, one.steps * times) for one in period], delta) <= epsilon
        )

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
        if high > _MOST:
            raise ArgumentError(f"More than {low} repetitions stay within epsilon {epsilon}; take less noise.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
