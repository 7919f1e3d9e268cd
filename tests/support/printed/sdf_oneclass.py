"""What published statistics of detectors give as printed, and what is true: numbers of docs/errata.md."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64
from scipy.integrate import quad
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack
from scipy.stats import norm


def shifted(shift: float) -> str:
    """The integral of F_-1(t) p_1(t + shift) for N(1, 1) against N(-1/2, 1)."""
    area, error = quad(lambda t: norm.cdf(t, -0.5) * norm.pdf(t + shift, 1.0), -12, 12)
    assert error < 1e-6
    return f"{area:.4f}"


def auroc() -> list[str]:
    return [shifted(0.0), shifted(-0.4), shifted(0.4)]


def minimiser(
    grid: Float64[np.ndarray, " n"],
    p: Float64[np.ndarray, " n"],
    q: Float64[np.ndarray, " n"],
    margin: float,
    weight: float,
) -> Float64[np.ndarray, " n"]:
    """argmin over |f(x) - f(y)| <= |x - y| of sum p [w (m - f)+ - f] + sum q [w (m + f)+ + f]: a linear program."""
    n, steps = len(grid), np.diff(grid)
    rows = np.arange(n - 1)
    slope = coo_array((np.r_[np.ones(n - 1), -np.ones(n - 1)], (np.r_[rows, rows], np.r_[rows + 1, rows])), (n - 1, n))
    none, one = csr_array((n - 1, n)), csr_array(np.eye(n))
    # Variables f, u, v with u >= m - f, v >= m + f and u, v >= 0.
    left = vstack(
        [
            hstack([slope, none, none]),
            hstack([-slope, none, none]),
            hstack([-one, -one, csr_array((n, n))]),
            hstack([one, csr_array((n, n)), -one]),
        ]
    )
    right = np.r_[steps, steps, np.full(n, -margin), np.full(n, -margin)]
    cost = np.r_[q - p, weight * p, weight * q]
    bounds = [(None, None)] * n + [(0, None)] * (2 * n)
    found = linprog(cost, left, right, bounds=bounds, method="highs")
    assert found.success
    return found.x[:n]


def touching(
    margin: float, ratio: float
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """A grid, density 1/2 inside of [-1, 1], and outside `ratio` times as much up to twice the margin, the rest far."""
    grid = np.linspace(-3, 3, 601)
    step = grid[1] - grid[0]
    p = np.where(np.abs(grid) < 1 - step / 2, 0.5, np.where(np.abs(grid) <= 1 + step / 2, 0.25, 0.0))
    near = (np.abs(grid) >= 1 - step / 2) & (np.abs(grid) <= 1 + 2 * margin)
    q = np.where(near, 0.5 * ratio, 0.0)
    q[np.abs(np.abs(grid) - 1) <= step / 2] /= 2
    far = (np.abs(grid) > 1 + 2 * margin) & ~near
    q = q * step
    q[far] = (1 - q.sum()) / far.sum()
    return grid, p / p.sum(), q


def uneven() -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """A grid, uniform mass on [-1, 1], and 95 % at -3 against 5 % at 3: a gap of 2."""
    grid = np.linspace(-3, 3, 241)
    p = (np.abs(grid) <= 1 + 1e-9).astype(float)
    p[np.abs(np.abs(grid) - 1) < 1e-9] /= 2
    q = np.zeros_like(grid)
    q[0], q[-1] = 0.95, 0.05
    return grid, p / p.sum(), q


def gap_and_weight() -> list[str]:
    grid, p, q = uneven()
    f = minimiser(grid, p, q, 1.0, 1.0)
    rise = np.interp(1.0, grid, f) - np.interp(-1.0, grid, f)
    grid, p, q = touching(0.2, 0.5)
    right = grid > 0
    crossing = np.interp(0.0, -minimiser(grid, p, q, 0.2, 100.0)[right], grid[right])
    return [f"{rise:.2f}", f"at {crossing:.2f}"]


def update() -> list[str]:
    def loss(theta: float) -> float:
        return 100 * 2 * max(0.05 - theta, 0.0) - 2 * theta

    slope = (loss(0.5 + 1e-6) - loss(0.5 - 1e-6)) / 2e-6
    printed, right = 0.5 + 0.1 * slope, 0.5 - 0.1 * slope
    return [
        f"θ = {printed:.1f}",
        f"from {loss(0.5):.1f} to {loss(printed):.1f}",
        f"θ = {right:.1f}",
        f"{loss(right):.1f}.",
    ]


def percentile() -> list[str]:
    # Below the k-th smallest of n uniform scores lies the share k/(n + 1) on average.
    place = 1 + 0.1 * 19
    return [f"{100 * place / 21:.1f} %", f"{100 * 2 / 21:.1f} %"]


def overestimate() -> list[str]:
    return [f"{1 - abs(1.5):.1f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The AUROC that survives an attack": auroc,
    "A gap and a large weight": gap_and_weight,
    "The sign of the update": update,
    "A percentile as the threshold": percentile,
    "What a 1-Lipschitz field cannot overestimate": overestimate,
}
