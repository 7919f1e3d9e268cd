"""How the noise of one release is shared among its tensors."""

import math
from abc import ABC, abstractmethod
from typing import final

from lipkit.errors import ArgumentError
from lipkit.privacy.record_limits.limits import Limits


class Allocation(ABC):
    """Noise multipliers sigma_d of the tensors of a release, which together are one Gaussian release of sigma:

        sum_d 1 / sigma_d^2 = 1 / sigma^2.

    Noise of deviation sigma_d D_d is added to the sum of the gradients of tensor d, whose limit is D_d. Divided by its
    deviations the release is one vector with standard normal noise, moved by at most 1 / sigma.
    """

    @final
    def multipliers(self, limits: Limits, sigma: float) -> dict[str, float]:
        """sigma_d by name; infinite for a tensor whose gradient is zero."""
        deviations, values = self.deviations(limits, sigma), limits.values_by_name()
        return {name: deviations[name] / value if value > 0 else math.inf for name, value in values.items()}

    @final
    def deviations(self, limits: Limits, sigma: float) -> dict[str, float]:
        """The standard deviation of the noise on each tensor's sum, sigma_d D_d."""
        if not (math.isfinite(sigma) and sigma > 0):
            raise ArgumentError(f"A noise multiplier is a finite number > 0, got {sigma}.")
        return {name: sigma * share for name, share in self._deviations(limits).items()}

    @abstractmethod
    def _deviations(self, limits: Limits) -> dict[str, float]:
        """The deviations for sigma = 1."""


@final
class Global(Allocation):
    """The same deviation for all entries, sigma times the limit of the whole gradient."""

    def _deviations(self, limits: Limits) -> dict[str, float]:
        return dict.fromkeys(limits, float(limits.total.value))


@final
class PerTensor(Allocation):
    """The same multiplier for all tensors, sigma sqrt(their number)."""

    def _deviations(self, limits: Limits) -> dict[str, float]:
        return {name: value * len(limits) ** 0.5 for name, value in limits.values_by_name().items()}


@final
class Optimal(Allocation):
    """The least energy of noise, sum_d p_d (sigma_d D_d)^2 for tensors of p_d entries:

        sigma_d^2 = sigma^2 S / (sqrt(p_d) D_d),   S = sum_d sqrt(p_d) D_d,   energy sigma^2 S^2.

    By the inequality of Cauchy and Schwarz never more than `Global` or `PerTensor`. Ours.
    """

    def _deviations(self, limits: Limits) -> dict[str, float]:
        values = limits.values_by_name()
        roots = {name: limits.sizes[name] ** 0.5 for name in limits}
        total = math.fsum(roots[name] * value for name, value in values.items())
        return {name: math.sqrt(total * value / roots[name]) for name, value in values.items()}


def noise_energy(limits: Limits, deviations: dict[str, float]) -> float:
    """The expected square of the noise, sum_d p_d s_d^2."""
    return math.fsum(limits.sizes[name] * deviations[name] ** 2 for name in limits)
