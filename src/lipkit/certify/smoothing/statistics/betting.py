"""Confidence limits from bets against a mean: valid for any number of votes, also one that the votes choose."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import scipy
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.certify.confidence_intervals import ConfidenceInterval, check_level, limits_of_counts
from lipkit.certify.smoothing.statistics.intervals import Interval, Votes, counts_of
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8192, ULP

# Halvings of an interval inside [0, 1]: what is left is 1e-12, and the limit is on its safe side.
_HALVINGS = 40


@final
@dataclass(frozen=True)
class BetaBinomial(Interval):
    """Limits of a share that hold at all times at once, from k ones among n votes that are 0 or 1.

    Against "the share is m or less" one bets on shares that are uniform in (m, 1). If it is true, the capital
        W(m) = (1/(1 - m)) int_m^1 t^k (1 - t)^(n - k) dt / (m^k (1 - m)^(n - k))
    is a nonnegative supermartingale that starts at 1, and ever reaches 1/a with probability a at most (Ville). The
    lower limit is the m below k/(n + 1) where W(m) = 1/a; W falls up to there. The upper limit is that of the zeros.

    Guarantee: P(some n has share < limit) <= a, rounded outward. It is wider than `ClopperPearson`, by a factor of
    about sqrt(1 + log(n)/(2 log(1/a))). Reference: Robbins 1970; Waudby-Smith, Ramdas 2024, who call it betting.
    """

    anytime: ClassVar[bool] = True

    def lower(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        """P(mean < limit at any time) <= `failure`, for each entry by itself."""
        counts = counts_of(votes, self)
        return self._limits(counts, votes, failure)

    def upper(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        """P(mean > limit at any time) <= `failure`, for each entry by itself."""
        counts = votes.trials[:, None] - counts_of(votes, self)
        # The subtraction rounds by half the distance of numbers at 1.
        return (1 - self._limits(counts, votes, failure) + ULP).clamp(max=1.0)

    def _limits(self, counts: Tensor, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        k, n = counts.cpu().numpy(), votes.trials[:, None].cpu().numpy()
        return torch.from_numpy(limits_of_counts(_beta_binomial_lower, k, n, failure)).to(counts.device)


def _beta_binomial_lower(k: np.ndarray, n: np.ndarray, failure: float) -> np.ndarray:
    found = np.zeros(k.shape)
    some = k > 0
    k, n = k[some], n[some]
    constant = scipy.special.betaln(k + 1, n - k + 1)

    def reaches(m: np.ndarray) -> np.ndarray:
        above = np.log(scipy.special.betaincc(k + 1, n - k + 1, m))
        ones, zeros = k * np.log(m), (n - k + 1) * np.log1p(-m)
        # The terms cancel; each is good to a few units in its last place.
        slack = ROUNDINGS_8192 * (1 + np.abs(constant) + np.abs(ones) + np.abs(zeros))
        return constant + above - ones - zeros - slack >= -math.log(failure)

    found[some] = _largest(reaches, k / (n + 1))
    return found


def betting_interval(values: Float[Tensor, " n"], failure: float) -> ConfidenceInterval:
    """An interval for the mean of independent values in [0, 1], from the values themselves and not from moments alone.

    Against "the mean is m or less" one bets l_t of the capital on the next value,
        K_t = K_(t-1) (1 + l_t (x_t - m)),   l_t = min(sqrt(2 log(2/a)/(n v_(t-1))), 1/(2 m)),
    with v the variance of the values before (and of 1/2, to begin with). The lower end is where the capital of some
    t reaches 2/a; the upper end is that of 1 - x.

    Guarantee: the mean lies inside with probability 1 - `failure`, rounded outward; the mean of each value given those
    before must be the same. Tighter than `EmpiricalBernstein`; the order of the values matters. Cost: 80 passes over
    the values. Reference: theorem 3 of Waudby-Smith, Ramdas 2024.
    """
    x = values.detach().double().cpu().numpy()
    check_level(failure)
    if not ((x >= 0) & (x <= 1)).all():
        raise ArgumentError(f"Bets need values in [0, 1], got {x.min():.6g} to {x.max():.6g}; divide by their range.")
    return ConfidenceInterval(_betting_lower(x, failure / 2), min(1.0, 1 - _betting_lower(1 - x, failure / 2) + ULP))


def _betting_lower(x: np.ndarray, failure: float) -> float:
    if not len(x):
        return 0.0
    times = np.arange(1, len(x) + 1)
    means = (0.5 + x.cumsum()) / (times + 1)
    variances = (0.25 + ((x - means) ** 2).cumsum()) / (times + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    bets = np.sqrt(-2 * math.log(failure) / (len(x) * before))

    def reaches(m: np.ndarray) -> np.ndarray:
        gains = np.log1p(np.minimum(bets, 0.5 / m) * (x - m))
        slack = (times + 8) * ULP * np.abs(gains).cumsum()
        return np.array([(gains.cumsum() - slack).max() >= -math.log(failure) * (1 + ULP)])

    return float(_largest(reaches, np.ones(1))[0])


def _largest(reaches: Callable[[np.ndarray], np.ndarray], end: np.ndarray) -> np.ndarray:
    """The largest m in (0, end) where the capital, which falls with m, `reaches` its goal; rounded down."""
    low, high = np.zeros_like(end), end
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = reaches(middle)
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return low
