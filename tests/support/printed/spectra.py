"""What formulas about spectra and complexities give as printed, and what is true: numbers of docs/errata.md."""

import math
from collections.abc import Callable

import numpy as np
from scipy.integrate import quad
from scipy.optimize import linear_sum_assignment


def gaussian() -> list[str]:
    # Polar coordinates; the transform of exp(-|x|^2) in the plane is pi exp(-pi^2 r^2).
    total, _ = quad(lambda r: 2 * math.pi * r * math.pi * math.exp(-((math.pi * r) ** 2)) * 2 * math.pi * r, 0, 8)
    assert math.isclose(total, math.sqrt(math.pi))
    return [f"{total:.4f}"]


def band() -> list[str]:
    w = np.linspace(0.35, 0.45, 100_001)
    largest = float((2 * np.pi**2 * w * np.exp(-(np.pi**2) * w**2)).max())
    # exp(-r^2) is steepest at r = 2^(-1/2).
    return [f"{largest * math.sqrt(math.pi * 0.05**2):.4f} ε", f"{math.sqrt(2) * math.exp(-0.5):.4f} ε"]


def white_noise() -> list[str]:
    waves = np.exp(-2j * np.pi * np.add.outer(np.arange(9) * 3 / 9, np.arange(12) * 5 / 12))
    return [f"{4 * float((np.abs(waves) ** 2).sum()):.0f}"]


def weights() -> list[str]:
    assert sum(math.comb(7, t) / (8 * math.comb(7, t)) for t in range(8)) == 1
    return [f"{sum(math.comb(7, t) ** 2 / 8 for t in range(8)):.0f}"]


def scores() -> list[str]:
    beta = 0.75 ** np.arange(8)
    length = np.linalg.norm(beta)
    eta = beta.sum() / (8 * length)
    return [f"{abs(beta[band] / length - eta) / (1 - eta):.4f}" for band in (0, 7)]


def complexity() -> list[str]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 2000))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = []
    for _ in range(6):
        order = rng.permutation(64)
        costs = np.linalg.norm(x[order[:32], None] - x[None, order[32:]], axis=2)
        found.append(costs[linear_sum_assignment(costs)].sum() / 64)
    assert min(found) > 0.67
    return [f"{math.sqrt(2 / 64):.3f}"]


def packing() -> list[str]:
    oler = 2 / math.sqrt(3) * 100**2 / 4 + 400 / 4 + 1
    return [f"{100**2 / math.pi:.0f}", f"{int(oler)}", f"{100**2 / math.pi / 4:.0f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The contributions of a Gaussian": gaussian,
    "A band of the input is no band of the function": band,
    "The density of white noise": white_noise,
    "The weight of a coalition": weights,
    "The range of the spectral robustness score": scores,
    "The complexity of all Lipschitz functions": complexity,
    "The number of points that a margin allows": packing,
}
