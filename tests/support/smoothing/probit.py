"""Probit regression under Gaussian noise: a classifier whose smoothed version is known in closed form."""

import math
from dataclasses import dataclass

import scipy


@dataclass(frozen=True)
class Probit:
    """F = (Phi(slope t), Phi(-slope t)) with t the signed distance to the boundary; f~ is again of this form."""

    slope: float

    @property
    def coordinate(self) -> float:
        return self.slope / math.sqrt(2 * math.pi)

    @property
    def joint(self) -> float:
        return math.sqrt(2) * self.coordinate

    @property
    def pair(self) -> float:
        return 2 * self.coordinate

    def smoothed(self, sigma: float) -> "Probit":
        return Probit(self.slope / math.hypot(1.0, self.slope * sigma))

    def share(self, t: float) -> float:
        return float(scipy.special.ndtr(self.slope * t))
