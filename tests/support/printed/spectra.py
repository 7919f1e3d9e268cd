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


def waves() -> list[str]:
    # x = e^t, where sin(1/x) is slow; what lies below x = 1e-3 adds less than 1e-9 to the transform.
    t, step = np.linspace(math.log(1e-3), math.log(4), 60_001, retstep=True)
    x = np.exp(t)
    weights = x**3 * np.sin(1 / x) * np.exp(-(x**2)) * step
    found = []
    for start in (16, 256):
        frequencies = start * (1 + (np.arange(60) + 0.5) / 60)
        sizes = [2 * abs(float((weights * np.sin(2 * math.pi * w * x)).sum())) for w in frequencies]
        found.append(f"{2 * start / 60 * float((2 * math.pi * frequencies * sizes).sum()):.2f}")
    u = np.linspace(0.3, 0.5, 200_001)
    slope = np.exp(-(u**2)) * (2 * (u - u**3) * np.sin(1 / u) - np.cos(1 / u))
    return [*found, f"{slope.max():.4f}"]


def below() -> list[str]:
    moved = math.sqrt(0.5)
    return [f"{moved:.4f}", f"{2 * math.pi * moved * 0.4 * math.pi / 2 * math.exp(-((math.pi * 0.4) ** 2)):.4f}"]


def untrained() -> list[str]:
    beta = 0.75 ** np.arange(8)
    length = np.linalg.norm(beta)
    eta = beta.sum() / (8 * length)
    psi = 5 + np.random.default_rng(0).standard_normal((200_000, 8))
    shifted = psi - psi.min(1, keepdims=True)
    printed = np.abs(shifted / shifted.sum(1, keepdims=True) @ beta / length - eta) / (1 - eta)
    return [f"{printed.mean():.3f}", f"{np.quantile(printed, 0.95):.3f}"]


def doubled() -> list[str]:
    return [str(64 * width + width + 10 * width + 10) for width in (16, 32)]


def scale() -> list[str]:
    edge = 2 * math.sqrt(512)
    return [f"{edge:.2f}", f"{edge / math.sqrt(512 + math.sqrt(512)):.3f}", f"{1 / 1024:.6f}", f"{edge**-2:.6f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The contributions of a Gaussian": gaussian,
    "A band of the input is no band of the function": band,
    "The density of white noise": white_noise,
    "The weight of a coalition": weights,
    "The range of the spectral robustness score": scores,
    "The complexity of all Lipschitz functions": complexity,
    "The number of points that a margin allows": packing,
    "An integrable transform is not enough": waves,
    "Below for above": below,
    "Layers for another size of images": lambda: [f"28 · 28 = {28 * 28}"],
    "Untrained networks and equal weights": untrained,
    "Two answers on the size of models": doubled,
    "A bracket lost from the scale of random layers": scale,
    "The norm of the Dirichlet energy": lambda: [
        f"is {2}, and for 2f it is {2**2 * 2}",
        f"is {8**2 / (4 * 2**2) - 1:g}",
    ],
    "A population risk that is the empirical one": lambda: [f"{0:g} and {0.5:g}"],
}
