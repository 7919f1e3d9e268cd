"""Confidence intervals for a share, from a count of successes."""

import math
from collections.abc import Callable
from typing import NamedTuple

import scipy

from lipkit.errors import ArgumentError

# The incomplete beta function is good to about 1e-13 relative; a tail must clear its level by a thousand times that.
_TRUST = 1e-10
# First move of an end that the check refuses, relative to the end; doubled until the check passes.
_WIDEN = 1e-12


class ConfidenceInterval(NamedTuple):
    """A closed interval of shares."""

    low: float
    high: float


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> ConfidenceInterval:
    """The share p of a binomial law lies inside with probability `level` at least, whatever p is.

        low  = the largest p with P(X >= k) <= (1 - level)/2,      0 for k = 0,
        high = the smallest p with P(X <= k) <= (1 - level)/2,     1 for k = n.

    Guarantee: coverage >= `level` (usually above it: the price of discreteness); ends rounded outward and checked with
    the tail probability itself. No trials give [0, 1]. Cost: microseconds. Reference: Clopper, Pearson 1934.
    """
    _check(successes, trials, level)
    tail = (1 - level) / 2
    return ConfidenceInterval(_lower(successes, trials, tail), _upper(successes, trials, tail))


def lower_limit(successes: int, trials: int, failure: float) -> float:
    """The one-sided limit: P(p < limit) <= `failure`, over the draws, for every p. k = n gives failure^(1/n).

    Guarantee: rounded down. This is what randomised smoothing asks for. Reference: Clopper, Pearson 1934.
    """
    _check_limit(successes, trials, failure)
    return _lower(successes, trials, failure)


def upper_limit(successes: int, trials: int, failure: float) -> float:
    """The one-sided limit from above: P(p > limit) <= `failure`, over the draws, for every p. Rounded up."""
    _check_limit(successes, trials, failure)
    return _upper(successes, trials, failure)


def wilson(successes: int, trials: int, level: float = 0.95) -> ConfidenceInterval:
    """(k + z^2/2 -+ z sqrt(k (n - k)/n + z^2/4)) / (n + z^2), z the normal quantile: `level` on average, not always.

    Guarantee: none; the coverage dips below `level` for some p. Shorter than `clopper_pearson`, for plots.
    Reference: Wilson 1927.
    """
    _check(successes, trials, level)
    if not trials:
        return ConfidenceInterval(0.0, 1.0)
    z = float(scipy.special.ndtri(0.5 + level / 2))
    middle = successes + z * z / 2
    half = z * math.sqrt(successes * (trials - successes) / trials + z * z / 4)
    return ConfidenceInterval(
        max(0.0, (middle - half) / (trials + z * z)), min(1.0, (middle + half) / (trials + z * z))
    )


def _lower(k: int, n: int, tail: float) -> float:
    if k == 0:
        return 0.0
    # P(X >= k) is the incomplete beta function of (k, n - k + 1), increasing in p.
    return _move_outward(
        float(scipy.special.betaincinv(k, n - k + 1, tail)),
        -1.0,
        lambda p: scipy.special.betainc(k, n - k + 1, p),
        tail,
    )


def _upper(k: int, n: int, tail: float) -> float:
    if k == n:
        return 1.0
    # P(X <= k) is the complement for (k + 1, n - k), decreasing in p.
    start = float(scipy.special.betainccinv(k + 1, n - k, tail))
    return _move_outward(start, 1.0, lambda p: scipy.special.betaincc(k + 1, n - k, p), tail)


def _move_outward(start: float, side: float, probability: Callable[[float], float], tail: float) -> float:
    """The solver's answer moved outward until the tail probability there is below its level for certain."""
    width, end = _WIDEN, start
    while 0.0 < end < 1.0 and not probability(end) <= tail * (1 - _TRUST):
        end = start * (1 + side * width)
        width *= 2
    return min(1.0, max(0.0, end))


def _check_limit(successes: int, trials: int, failure: float) -> None:
    # 1 - failure is 1.0 for small ones, so that is not what to look at.
    _check(successes, trials, 0.5 if 0.0 < failure < 1.0 else failure)


def _check(successes: int, trials: int, level: float) -> None:
    if not 0 <= successes <= trials:
        raise ArgumentError(f"A count lies in 0..{trials} trials, got {successes} successes.")
    check_level(level)


def check_level(level: float) -> float:
    """The confidence level, if it is one."""
    if not 0.0 < level < 1.0:
        raise ArgumentError(f"A confidence level and a failure probability lie in (0, 1), got a level of {level}.")
    return level
