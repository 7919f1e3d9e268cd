"""Confidence intervals for a share, from a count of successes."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float64, Int64

from lipkit.errors import ArgumentError

# The incomplete beta function is good to about 1e-13 relative; a tail must clear its level by a thousand times that.
_TRUST = 1e-10
# First move of an end that the check refuses, relative to the end; doubled until the check passes.
_WIDEN = 1e-12


_Counts = Int64[np.ndarray, " n"]
_Shares = Float64[np.ndarray, " n"]


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
    return ConfidenceInterval(_one(_lower, successes, trials, tail), _one(_upper, successes, trials, tail))


def lower_limit(successes: int, trials: int, failure: float) -> float:
    """The one-sided limit: P(p < limit) <= `failure`, over the draws, for every p. k = n gives failure^(1/n).

    Guarantee: rounded down. This is what randomised smoothing asks for. Reference: Clopper, Pearson 1934.
    """
    _check_limit(successes, trials, failure)
    return _one(_lower, successes, trials, failure)


def upper_limit(successes: int, trials: int, failure: float) -> float:
    """The one-sided limit from above: P(p > limit) <= `failure`, over the draws, for every p. Rounded up."""
    _check_limit(successes, trials, failure)
    return _one(_upper, successes, trials, failure)


def lower_limits(
    successes: Int64[np.ndarray, "..."], trials: Int64[np.ndarray, "..."], failure: float
) -> Float64[np.ndarray, "..."]:
    """`lower_limit` of many counts at once. Cost: ten microseconds for every different pair of counts."""
    return limits_of_counts(_lower, successes, trials, failure)


def upper_limits(
    successes: Int64[np.ndarray, "..."], trials: Int64[np.ndarray, "..."], failure: float
) -> Float64[np.ndarray, "..."]:
    """`upper_limit` of many counts at once. Cost: ten microseconds for every different pair of counts."""
    return limits_of_counts(_upper, successes, trials, failure)


def limits_of_counts(
    limit: Callable[[_Counts, _Counts, float], _Shares],
    successes: Int64[np.ndarray, "..."],
    trials: Int64[np.ndarray, "..."],
    failure: float,
) -> Float64[np.ndarray, "..."]:
    """The limits of all pairs, each different one computed once: with many classes most counts are small and equal."""
    k, n = np.broadcast_arrays(successes, trials)
    outside = (k < 0) | (k > n)
    if outside.any():
        _check_limit(int(k[outside][0]), int(n[outside][0]), failure)
    _check_limit(0, 0, failure)
    if not k.size:
        return np.zeros(k.shape)
    base = n.max() + 1
    different, where = np.unique(n * base + k, return_inverse=True)
    return limit(different % base, different // base, failure)[where.ravel()].reshape(k.shape)


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


def _one(limit: Callable[[_Counts, _Counts, float], _Shares], k: int, n: int, tail: float) -> float:
    return float(limit(np.array([k]), np.array([n]), tail)[0])


def _lower(k: _Counts, n: _Counts, tail: float) -> _Shares:
    found = np.zeros(k.shape)
    some = k > 0
    k, n = k[some], n[some]
    # P(X >= k) is the incomplete beta function of (k, n - k + 1), increasing in p.
    start = scipy.special.betaincinv(k, n - k + 1, tail)
    found[some] = _move_outward(start, -1.0, lambda p: scipy.special.betainc(k, n - k + 1, p), tail)
    return found


def _upper(k: _Counts, n: _Counts, tail: float) -> _Shares:
    found = np.ones(k.shape)
    some = k < n
    k, n = k[some], n[some]
    # P(X <= k) is the complement for (k + 1, n - k), decreasing in p.
    start = scipy.special.betainccinv(k + 1, n - k, tail)
    found[some] = _move_outward(start, 1.0, lambda p: scipy.special.betaincc(k + 1, n - k, p), tail)
    return found


def _move_outward(start: _Shares, side: float, probability: Callable[[_Shares], _Shares], tail: float) -> _Shares:
    """The solver's answers moved outward until the tail probability there is below its level for certain."""
    # A solver that gives up answers NaN, of which nothing follows: the end of all shares.
    start = np.where(np.isnan(start), (1 + side) / 2, start)
    width, end = _WIDEN, start
    while True:
        failing = (end > 0.0) & (end < 1.0) & ~(probability(end) <= tail * (1 - _TRUST))
        if not failing.any():
            return np.clip(end, 0.0, 1.0)
        end = np.where(failing, start * (1 + side * width), end)
        width *= 2


def _check_limit(successes: int, trials: int, failure: float) -> None:
    # 1 - failure is 1.0 for small ones, so that is not what to look at.
    _check(successes, trials, 0.5 if 0.0 < failure < 1.0 else failure)


def _check(successes: int, trials: int, level: float) -> None:
    if not 0 <= successes <= trials:
        raise ArgumentError(f"A count lies in 0..{trials} trials, got {successes} successes.")
    check_level(level)


def check_level(level: float) -> float:
    """The confidence level, if it is one."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0.0 < level < 1.0:
        raise ArgumentError(
            f"A confidence level and a failure probability such as alpha are numbers in (0, 1), got {level!r}."
        )
    return level
