"""One-sided confidence limits for means of votes in [0, 1]."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.certify.confidence_intervals import check_level, lower_limits, upper_limits
from lipkit.certify.smoothing.statistics.votes import Votes
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_16, ULP


class Interval(ABC):
    """Limits of the mean of the law that votes come from, each of which fails with a stated probability.

    Guarantee: rounded outward, the roundings of the sums included. No votes give 0 and 1.
    """

    anytime: ClassVar[bool] = False
    """Whether the limits hold at all numbers of votes at once, so that one may stop when one likes what one sees."""

    @abstractmethod
    def lower(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        """P(mean < limit) <= `failure`, for each entry by itself."""

    @abstractmethod
    def upper(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        """P(mean > limit) <= `failure`, for each entry by itself."""


def counts_of(votes: Votes, interval: Interval) -> Int64[Tensor, "batch entries"]:
    """The numbers of votes that are 1, if all votes are 0 or 1: exactly then the sum is that of the squares."""
    counts = votes.total.round()
    if not (torch.equal(counts, votes.total) and torch.equal(votes.squares, votes.total)):
        raise ArgumentError(
            f"{type(interval).__name__} needs votes that are 0 or 1, as of Hardmax; for others use EmpiricalBernstein."
        )
    return counts.long()


@final
@dataclass(frozen=True)
class ClopperPearson(Interval):
    """The limits of a binomial share: P(X >= k; lower) = a and P(X <= k; upper) = a. For votes that are 0 or 1.

    Reference: Clopper, Pearson 1934.
    """

    def lower(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        return self._limits(lower_limits, votes, failure)

    def upper(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        return self._limits(upper_limits, votes, failure)

    def _limits(
        self, limits: Callable[[np.ndarray, np.ndarray, float], np.ndarray], votes: Votes, failure: float
    ) -> Float64[Tensor, "batch entries"]:
        counts = counts_of(votes, self)
        found = limits(counts.cpu().numpy(), votes.trials[:, None].cpu().numpy(), failure)
        return torch.from_numpy(found).to(counts.device)


class _Shifted(Interval):
    """mean - shift and mean + shift."""

    @abstractmethod
    def _shift(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        """How far from the mean of the votes the limit lies, before rounding."""

    def lower(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        mean, shift = _mean(votes), self._shift(votes, check_level(failure)) * (1 + ROUNDINGS_16)
        limit = mean * (1 - _slack(votes)) - shift - ULP
        return torch.where(votes.trials[:, None] > 0, limit, 0.0).clamp(0.0, 1.0)

    def upper(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        mean, shift = _mean(votes), self._shift(votes, check_level(failure)) * (1 + ROUNDINGS_16)
        limit = mean * (1 + _slack(votes)) + shift + ULP
        return torch.where(votes.trials[:, None] > 0, limit, 1.0).clamp(0.0, 1.0)


@final
@dataclass(frozen=True)
class SubGaussian(_Shifted):
    """mean -+ s sqrt(2 log(1/a)/n): the votes' Lipschitz constant bounds how much they scatter, whatever they are.

    With Gaussian noise of deviation sigma a vote that is L-Lipschitz in the input is sigma L-Lipschitz in a standard
    normal vector, and the mean of n of them sigma L/sqrt(n)-Lipschitz in n such vectors. An L-Lipschitz function of
    a standard normal vector exceeds its mean by t with probability at most exp(-t^2/(2 L^2)). No vote in [0, 1]
    scatters more than s = 1/2 (`Hoeffding`).

    Limits: for Gaussian noise and maps with a constant only. Reference: Tsirelson, Ibragimov, Sudakov 1976; theorem 5.6
    in Boucheron, Lugosi, Massart 2013.

    Args:
        constant: s = sigma L(F_k)/r, an upper bound; L(F_k) = map.coordinate * L and r = map.mass.
    """

    constant: float

    def __post_init__(self) -> None:
        if not self.constant >= 0:
            raise ArgumentError(f"The constant sigma L/r of the votes is a number >= 0, got {self.constant}.")

    def _shift(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        s = min(self.constant, 0.5)
        shift = s * (-2 * math.log(failure) / votes.trials.clamp(min=1).double()).sqrt()
        return shift[:, None].expand_as(votes.total)


@final
@dataclass(frozen=True)
class Hoeffding(_Shifted):
    """mean -+ sqrt(log(1/a)/(2n)): for any votes in [0, 1]. Reference: Hoeffding 1963."""

    def _shift(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        return SubGaussian(0.5)._shift(votes, failure)


@final
@dataclass(frozen=True)
class EmpiricalBernstein(_Shifted):
    """mean -+ (sqrt(2 S log(2/a)/n) + 7 log(2/a)/(3(n - 1))), S the unbiased variance: votes that agree pay less.

    One side fails with probability a, the estimate of the variance included. Needs two votes; wider than `Hoeffding`
    for few votes or for votes near 0 and 1. Reference: theorem 4 of Maurer, Pontil 2009.
    """

    def _shift(self, votes: Votes, failure: float) -> Float64[Tensor, "batch entries"]:
        n, slack, log = votes.trials[:, None].double(), _slack(votes), math.log(2 / failure)
        least = (n - 1).clamp(min=1.0)
        # Rounded up: the larger sum of squares minus the smaller mean.
        variance = (votes.squares * (1 + slack) - n * (_mean(votes) * (1 - slack)).square()).clamp(min=0.0) / least
        shift = (2 * variance * log / n.clamp(min=1.0)).sqrt() + 7 * log / (3 * least)
        return torch.where(n > 1, shift, math.inf)


def _mean(votes: Votes) -> Float64[Tensor, "batch entries"]:
    return votes.total / votes.trials[:, None].clamp(min=1)


def _slack(votes: Votes) -> Float64[Tensor, "batch 1"]:
    """The relative error of a sum of n nonnegative numbers, doubled, and room for the formulas that follow."""
    return (votes.trials[:, None].double() + 8) * ULP
