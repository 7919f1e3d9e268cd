"""Lipschitz constants of functions that are smoothed by Gaussian noise: one theorem, one type."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from lipkit.bound import L2, Bound, Kind, Scope
from lipkit.certify.radii.radius import require_certifying
from lipkit.certify.smoothing.ramp import steepest
from lipkit.errors import ArgumentError, MetricError, RegionError, ShapeError
from lipkit.regions import Ball, Everywhere, Region
from lipkit.rounding.slacks import ROUNDINGS_64


class SmoothingLaw(ABC):
    """A theorem about f~(x) = E f(x + sigma Z) for a function f with values in [0, r], r the mass; l2 to l2."""

    @property
    def region(self) -> Region:
        """Where it holds."""
        return Everywhere()

    @property
    def note(self) -> str:
        """Names the function that the constant is of, where it is not f~ itself."""
        return ""

    @abstractmethod
    def constant(self, bound: Bound | None, sigma: float, mass: float) -> float:
        """The constant, up to a few roundings; `bound` is that of f, for laws that need one."""


def smoothed_lipschitz(bound: Bound | None, sigma: float, mass: float = 1.0, rule: SmoothingLaw | None = None) -> Bound:
    """The Lipschitz constant of a function after smoothing by Gaussian noise.

    Guarantee: UPPER, rounded up; random bounds pass their probability of failure on. Cost: microseconds.
    Reference: Delattre 2025, table 5.3, as corrected in our errata.

    Args:
        bound: The constant of f; None for laws that use its range only.
        sigma: Standard deviation of the noise.
        mass: Values of f lie in [0, mass]; outputs of vector-valued f are >= 0 and sum to `mass`.
        rule: The theorem; `LipschitzCoordinate()` if None.
    """
    _check_positive("standard deviation", sigma)
    _check_positive("mass", mass)
    law = LipschitzCoordinate() if rule is None else rule
    made = Bound.from_value(law.constant(bound, sigma, mass) * (1 + ROUNDINGS_64), Kind.UPPER, law)
    return replace(made, region=law.region, failure=0.0 if bound is None else bound.failure, note=law.note)


def optimal_sigma(
    constant: float, mass: float = 1.0, rule: "LipschitzCoordinate | LipschitzJoint | None" = None
) -> float:
    """The noise at which smoothing helps a Lipschitz function most: r/(L sqrt(2 pi)), jointly r/(L sqrt(pi)).

    There the constants of f itself and of any bounded function that is smoothed are equal, min{L, r/(sqrt(2 pi) sigma)}
    exceeds L erf(r/(2 sqrt(2) L sigma)) by most, and the latter is erf(sqrt(pi)/2) L = 0.790 L: radii grow by 1.266.
    Reference: Delattre 2025, proposition 4.6.3.
    """
    _check_positive("Lipschitz constant", constant)
    _check_positive("mass", mass)
    law = LipschitzCoordinate() if rule is None else rule
    return law.range(mass) / (constant * math.sqrt(2 * math.pi))


@final
@dataclass(frozen=True)
class Salman(SmoothingLaw):
    """r sqrt(2/pi)/sigma for |f| <= r: the mean of |Z_1| in the worst direction, attained by r sign(x_1).

    Reference: Salman, Li, Razenshteyn, Zhang, Zhang, Bubeck, Yang 2019.
    """

    def constant(self, bound: Bound | None, sigma: float, mass: float) -> float:
        return mass * math.sqrt(2 / math.pi) / sigma


@final
@dataclass(frozen=True)
class BoundedRange(SmoothingLaw):
    """r/(sqrt(2 pi) sigma) for any f with values in [0, r]: `Salman` for f - r/2. Half-spaces attain it.

    Reference: Delattre 2025, corollary 4.6.2, where f is Lipschitz; that is not needed.
    """

    def constant(self, bound: Bound | None, sigma: float, mass: float) -> float:
        return mass / (math.sqrt(2 * math.pi) * sigma)


@final
@dataclass(frozen=True)
class LipschitzCoordinate(SmoothingLaw):
    """L erf(r/(2 sqrt(2) L sigma)) for one output f with values in [0, r] and the constant L; attained by a ramp.

    At most both L and `BoundedRange`. Reference: Delattre 2025, theorem 4.6.1.
    """

    def range(self, mass: float) -> float:
        """The length of the interval of values."""
        return mass

    def constant(self, bound: Bound | None, sigma: float, mass: float) -> float:
        return _ramp_slope(_global_constant(bound, self), sigma, self.range(mass))


@final
@dataclass(frozen=True)
class LipschitzJoint(SmoothingLaw):
    """L erf(r/(2 L sigma)) for F into {p >= 0, sum p = r} with the joint constant L.

    Proof: a combination <u, F> with |u| = 1 has values in an interval of length r (max u - min u) <= r sqrt(2), and the
    constant L; now apply `LipschitzCoordinate`. Reference: Delattre 2025, corollaries 5.2.1 and 5.2.2.
    """

    def range(self, mass: float) -> float:
        """The largest length of the interval of values in one direction."""
        return math.sqrt(2) * mass

    def constant(self, bound: Bound | None, sigma: float, mass: float) -> float:
        return _ramp_slope(_global_constant(bound, self), sigma, self.range(mass))


@final
@dataclass(frozen=True)
class QuantileScale(SmoothingLaw):
    """1/sigma for Phi^-1(f~ / r), f with values in [0, r]. Half-spaces attain it.

    Reference: Salman et al. 2019; Levine, Singla, Feizi 2019.
    """

    @property
    def note(self) -> str:
        return "It is the constant of Phi^-1 of the smoothed share."

    def constant(self, bound: Bound | None, sigma: float, mass: float) -> float:
        return 1 / sigma


@final
@dataclass(frozen=True)
class LocalQuantileScale(SmoothingLaw):
    """The constant of Phi^-1(f~ / r) on a ball, for f with values in [0, r] and the constant L: at most 1/sigma.

    It is the largest L/r [Phi_sigma(s + r/L) - Phi_sigma(s)] / phi(Phi^-1(p)) over the shares p = f~ / r in the ball, s
    the start of the ramp whose smoothed share is p. Phi^-1(p) moves by at most radius/sigma; see `ramp.steepest`.
    For radii use `Gaussian`, which needs no constant of a ball. Reference: Delattre 2025, theorem 4.6.5.

    Args:
        low: A lower bound of the smoothed share f~ / r at the centre.
        high: An upper bound of it.
        ball: Where it is to hold, in l2.
    """

    low: float
    high: float
    ball: Ball

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ArgumentError(f"Bounds of a share are ordered and in [0, 1], got {self.low} and {self.high}.")
        if self.ball.p != 2.0:
            raise MetricError(f"Gaussian noise has constants on l2 balls, got a {self.ball}.")

    @property
    def region(self) -> Region:
        return self.ball

    @property
    def note(self) -> str:
        return "It is the constant of Phi^-1 of the smoothed share."

    def constant(self, bound: Bound | None, sigma: float, mass: float) -> float:
        slope = _global_constant(bound, self)
        width = mass / slope / sigma * (1 - ROUNDINGS_64) if slope > 0.0 else math.inf
        reach = np.array(self.ball.radius / sigma * (1 + ROUNDINGS_64))
        return float(steepest(np.array([self.low, self.high]), np.array(width), reach).max()) / sigma


def _ramp_slope(slope: float, sigma: float, length: float) -> float:
    """L erf(l/(2 sqrt(2) L sigma)), which rises with L and tends to l/(sqrt(2 pi) sigma)."""
    limit = length / (math.sqrt(2 * math.pi) * sigma)
    # One after the other: the product of two small numbers may be 0.
    argument = length / (2 * math.sqrt(2)) / slope / sigma if slope > 0.0 else math.inf
    # erf(x) < 2 x/sqrt(pi), and within 1e-16 of it here.
    return limit if argument < 1e-8 else slope * math.erf(argument)


def _global_constant(bound: Bound | None, law: SmoothingLaw) -> float:
    """The number of a bound that certifies, from l2 to l2, for all inputs."""
    if bound is None:
        raise ArgumentError(f"{law} needs the Lipschitz constant of the function, got None; give a bound of it.")
    require_certifying(bound)
    if bound.metric != L2:
        raise MetricError(f"Gaussian smoothing needs a constant from l2 to l2, got one in {bound.metric}.")
    if bound.region != Everywhere():
        raise RegionError(
            f"Noise leaves every region: a constant for all inputs is needed, got one on a {bound.region}."
        )
    if bound.of is not Scope.WHOLE:
        raise ShapeError(f"One constant is smoothed at a time, got one for {bound.of}.")
    return bound.value.item()


def _check_positive(what: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ArgumentError(f"The {what} is a finite number > 0, got {value}.")
