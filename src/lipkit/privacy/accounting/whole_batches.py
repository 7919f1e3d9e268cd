"""Accounting in closed form, for releases of which every record is a part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import scipy

from lipkit.errors import UnsupportedError
from lipkit.privacy.accounting._base import Accountant, Releases
from lipkit.rounding.slacks import ULP

_FEW_ULPS = 64 * ULP
_CLOSE = 1e-13


@final
@dataclass(frozen=True)
class Gaussian(Accountant):
    """The exact curve of Gaussian releases at rate 1, with scipy alone.

        delta = Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2),    mu^2 = sum of steps / sigma^2.

    All releases together are one Gaussian mechanism of multiplier 1/mu. Rates below 1 are refused.

    Guarantee: an upper bound within 1e-12 of the truth. Cost: microseconds.
    Reference: Balle, Wang 2018; Dong, Roth, Su 2022.
    """

    @property
    def name(self) -> str:
        return "exact curve of the Gaussian mechanism (Balle, Wang 2018)"

    def _epsilon(self, releases: Sequence[Releases], delta: float) -> float:
        sampled = [one.rate for one in releases if one.rate < 1.0]
        if sampled:
            raise UnsupportedError(
                f"The closed form holds at rate 1 and not at {sampled[0]}; take accountant=PLD() or RDP()."
            )
        mu = math.sqrt(math.fsum(one.steps / one.sigma**2 for one in releases)) * (1 + _FEW_ULPS)
        if delta_of_gaussian(0.0, mu) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while delta_of_gaussian(high, mu) > delta:
            low, high = high, 2 * high
        while high - low > _CLOSE * high:
            middle = (low + high) / 2
            low, high = (middle, high) if delta_of_gaussian(middle, mu) > delta else (low, middle)
        return high


def delta_of_gaussian(epsilon: float, mu: float) -> float:
    """The delta of a Gaussian mechanism of multiplier 1/mu at an epsilon, rounded up."""
    first = float(scipy.special.log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(scipy.special.log_ndtr(-epsilon / mu - mu / 2))
    # Both are accurate relative to the size of their exponents, and cancel.
    slack = _FEW_ULPS * (1 + abs(first) + abs(second) + epsilon)
    return -math.exp(first) * math.expm1(min(0.0, second - first)) + math.exp(first) * slack
