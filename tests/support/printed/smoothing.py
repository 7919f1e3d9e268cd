"""What formulas about smoothed functions give as printed, and what is true: numbers of docs/errata.md."""

import math
from collections.abc import Callable

import numpy as np
import scipy


def ramp_slope(slope: float, sigma: float) -> float:
    """The derivative in the middle of a ramp that rises from 0 to 1 with `slope`, smoothed: the steepest there is."""
    return slope * math.erf(1 / (2 * math.sqrt(2) * slope * sigma))


def squared_sigma() -> list[str]:
    return [f"{1 / (math.sqrt(2 * math.pi) * 4):.4f}", f"{ramp_slope(100.0, 2.0):.4f}"]


def best_noise() -> list[str]:
    sigmas = 1 / math.sqrt(math.pi), 1 / math.sqrt(2 * math.pi)
    gains = [min(1.0, 1 / (math.sqrt(2 * math.pi) * s)) / ramp_slope(1.0, s) for s in sigmas]
    return [f"{value:.4f}" for value in (*sigmas, *gains)]


def radius_side() -> list[str]:
    margin = 2 * float(scipy.special.ndtr(3.0)) - 1
    return [f"{margin:.4f}", f"{math.sqrt(math.pi / 2) * margin:.4f}"]


def lost_quantile() -> list[str]:
    quantiles = scipy.special.ndtri(0.8) - scipy.special.ndtri(0.15)
    return [f"{0.25 / 2 * (0.8 - 0.15):.4f}", f"{0.25 / 2 * quantiles:.4f}"]


def simplex_of_mass_one() -> list[str]:
    printed, true = 1 / (math.sqrt(math.pi) * 4), math.sqrt(2) * ramp_slope(1e6, 2.0)
    joint = 1 / math.sqrt(math.pi)
    claimed, probit = joint * math.erf(1 / (2 * joint)), 1 / math.sqrt(2 * math.pi)
    return [f"{value:.4f}" for value in (printed, true, joint, claimed, probit)]


def probit_scale() -> list[str]:
    z = np.linspace(-20, 20, 400_001)
    errors = [
        np.abs(scipy.special.ndtr(math.sqrt(math.pi / d) * z) - scipy.special.expit(z)).max() for d in (5.35, 9, 9.1)
    ]
    return [f"{errors[0]:.3f}", f"{errors[1]:.4f}", f"{errors[2]:.4f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "A power of σ in the constant of a smoothed function": squared_sigma,
    "The best noise for one output": best_noise,
    "Which way radii bound": radius_side,
    "A quantile lost from the radius of Lipschitz classifiers": lost_quantile,
    "The smoothed simplex of mass r": simplex_of_mass_one,
    "The probit that is near the sigmoid": probit_scale,
}

if __name__ == "__main__":
    for title, numbers in NUMBERS.items():
        print(title, numbers())
