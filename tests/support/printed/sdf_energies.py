"""The numbers in the errata on energies."""

import math
from collections.abc import Callable

from scipy.integrate import quad


def sign() -> list[str]:
    # E = theta |x| on the line at theta = 1, data at distance 2: p is exp(-|x|) / 2.
    drawn, _ = quad(lambda t: t * math.exp(-t), 0, math.inf)

    def loss(theta: float) -> float:
        total, _ = quad(lambda t: 2 * math.exp(-theta * t), 0, math.inf)
        return 2 * theta + math.log(total)

    # exp(-theta |x|) in place of E: its derivative is -|x| exp(-|x|) at theta = 1.
    of_draws, _ = quad(lambda t: -t * math.exp(-2 * t), 0, math.inf)
    of_data = -2 * math.exp(-2)
    shown = [f"{loss(theta):.4f}" for theta in (1.0, 1.1, 0.9)]
    return [f"{2 - drawn:.0f}", f"{drawn - 2:.0f}", *shown, f"{of_draws - of_data:.4f}"]


def confined() -> list[str]:
    # Even starts in [-1, 1] have the variance 1/3; each of 100 steps of 0.5 adds 2 * 0.5.
    variance = 1 / 3 + 100 * 2 * 0.5
    # Nearly normal after 100 steps.
    inside = math.erf(1 / math.sqrt(2 * variance))
    return [f"{variance:.1f}", f"{100 * inside:.0f} %"]


def combined() -> list[str]:
    # E_f = E_g = |x|: the values of E_f + E_g at 0 and 1, and the ratio of the densities there.
    return [f"{abs(1.0) + abs(1.0):.0f}", f"{math.exp(2):.2f}", f"{math.exp(1):.2f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The gradient of the likelihood of an energy": sign,
    "Chains of a Lipschitz energy": confined,
    "The constants of combined energies": combined,
}
