"""What is accounted for, and what every accountant does with it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, final

from lipkit.errors import ArgumentError, NotProvenError

# A share above the last digits of float64 arithmetic, and below all digits that anybody prints.
_UP = 2.0**-44
# Whole numbers up to here are floats as they are.
_MOST = 2**53
# Beyond these squares and exponents leave the range of floats, and nothing is meant.
_LEAST_SIGMA, _LARGEST_SIGMA = 1e-50, 1e50
_LARGEST_EPSILON = 1e6


@final
@dataclass(frozen=True)
class Releases:
    """So many releases of one kind: a sum over a Poisson batch, plus Gaussian noise of sigma times its sensitivity.

    Args:
        rate: The probability with which each record is in the batch, on its own; 1 means that every record is.
        sigma: The noise multiplier: the deviation of the noise over the sensitivity of the sum.
        steps: How many releases.
    """

    rate: float
    sigma: float
    steps: int

    def __post_init__(self) -> None:
        if not 0.0 < _real(self.rate) <= 1.0:
            raise ArgumentError(f"A sampling rate lies in (0, 1], got {self.rate!r}.")
        object.__setattr__(self, "rate", _real(self.rate))
        object.__setattr__(self, "sigma", check_sigma(self.sigma))
        object.__setattr__(self, "steps", check_count(self.steps, "A number of releases", least=0))


class Accountant(ABC):
    """Proves an epsilon for a sequence of releases at a given delta.

    The relation between data sets is add or remove one record, while rate, sigma and the number of releases are fixed.
    """

    @final
    def epsilon(self, releases: Sequence[Releases], delta: float) -> float:
        """An epsilon for which all releases together are (epsilon, delta)-private, rounded up. No releases cost 0."""
        delta = check_delta(delta)
        releases = [one for one in releases if one.steps]
        if not releases:
            return 0.0
        found = self._epsilon(releases, delta)
        if math.isnan(found):
            raise NotProvenError(f"{self} found no epsilon for {releases} at delta {delta}; take more noise.")
        return max(0.0, found) * (1 + _UP)

    @abstractmethod
    def _epsilon(self, releases: Sequence[Releases], delta: float) -> float:
        """The epsilon of at least one release; arguments are checked already."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How a paper would name the accountant, with the version of the package that computes."""


def check_count(count: int, what: str, least: int = 1) -> int:
    """The number, if it is a whole one and large enough; `what` says which number it is."""
    # Annotations do not keep fractions out, and a fraction of a record or of a step is billed as something else.
    if isinstance(count, bool) or not isinstance(count, Integral) or count < least:
        raise ArgumentError(f"{what} is a whole number, {least} or more, got {count!r}.")
    if count > _MOST:
        raise ArgumentError(f"{what} is a whole number up to 2^53, beyond which floats lose some, got more.")
    return int(count)


def check_delta(delta: float) -> float:
    """The delta, if it is one."""
    if not (found := _real(delta)) or not found < 1.0:
        raise ArgumentError(f"delta lies in (0, 1), below 1/records, got {delta!r}.")
    return found


def check_epsilon(epsilon: float) -> float:
    """The epsilon, if it is positive and not so large that it says nothing."""
    if not (found := _real(epsilon)) or not found <= _LARGEST_EPSILON:
        raise ArgumentError(f"epsilon is a positive number, {_LARGEST_EPSILON:g} at most, got {epsilon!r}.")
    return found


def check_sigma(sigma: float) -> float:
    """The noise multiplier, if it is positive, and neither vanishing nor endless."""
    if not _LEAST_SIGMA <= (found := _real(sigma)) <= _LARGEST_SIGMA:
        raise ArgumentError(
            f"A noise multiplier sigma is a positive number from {_LEAST_SIGMA:g} to {_LARGEST_SIGMA:g}, got "
            f"{sigma!r}; without noise there is no privacy."
        )
    return found


def _real(value: Any) -> float:
    """A number as a float, whatever type of number it is, such as 1 or numpy.float32(1); 0 for what is above none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return 0.0
    try:
        found = float(value)
    except OverflowError:
        return math.inf
    return found if found > 0 else 0.0
