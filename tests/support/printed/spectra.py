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
    "The weight of a coalition": weights,
    "The range of the spectral robustness score": scores,
    "The complexity of all Lipschitz functions": complexity,
    "The number of points that a margin allows": packing,
}
