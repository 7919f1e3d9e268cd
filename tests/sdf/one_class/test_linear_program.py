"""HKR in one dimension by linear programs: its minimiser is a distance, and where classes touch its zero set moves."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack

WEIGHT = 100.0


def minimiser(grid: np.ndarray, p: np.ndarray, q: np.ndarray, margin: float) -> np.ndarray:
    """argmin over |f(x) - f(y)| <= |x - y| of sum p [w (m - f)+ - f] + sum q [w (m + f)+ + f]: a linear program."""
    n, steps = len(grid), np.diff(grid)
    rows = np.arange(n - 1)
    slope = coo_array(
        (np.r_[np.ones(n - 1), -np.ones(n - 1)], (np.r_[rows, rows], np.r_[rows + 1, rows])), (n - 1, n)
    )
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
    cost = np.r_[q - p, WEIGHT * p, WEIGHT * q]
    bounds = [(None, None)] * n + [(0, None)] * (2 * n)
    found = linprog(cost, left, right, bounds=bounds, method="highs")
    assert found.success
    return found.x[:n]


def test_with_a_gap_of_twice_the_margin_the_minimiser_is_the_distance():
    grid, margin = np.linspace(-3, 3, 241), 0.2
    p = (np.abs(grid) <= 1).astype(float)
    q = (np.abs(grid) >= 1 + 2 * margin).astype(float)
    f = minimiser(grid, p / p.sum(), q / q.sum(), margin)
    distance = 1 - np.abs(grid)
    seen = (p + q) > 0
    # The solver is exact up to 1e-7, and both ends of the gap are points of the grid.
    np.testing.assert_allclose((f - margin)[seen], distance[seen], atol=1e-6)


@pytest.mark.parametrize("margin", [0.2, 0.4])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.25])
def test_where_the_classes_touch_the_zero_set_moves_by_the_ratio_of_densities(margin: float, ratio: float):
    # Density 1/2 inside of [-1, 1]; outside `ratio` times as much up to twice the margin, the rest far away.
    grid = np.linspace(-3, 3, 601)
    step = grid[1] - grid[0]
    p = np.where(np.abs(grid) < 1 - step / 2, 0.5, np.where(np.abs(grid) <= 1 + step / 2, 0.25, 0.0))
    near = (np.abs(grid) >= 1 - step / 2) & (np.abs(grid) <= 1 + 2 * margin)
    q = np.where(near, 0.5 * ratio, 0.0)
    q[np.abs(np.abs(grid) - 1) <= step / 2] /= 2
    far = (np.abs(grid) > 1 + 2 * margin) & ~near
    p = p / p.sum()
    scale = step
    q = q * scale
    q[far] = (1 - q.sum()) / far.sum()
    f = minimiser(grid, p, q, margin)
    right = grid > 0
    crossing = np.interp(0.0, -f[right], grid[right])
    moved = margin * (1 - ratio) / (1 + ratio)
    # The zero lies on the grid up to one step of .01, and hinges of weight 100 move by another half of one.
    assert crossing == pytest.approx(1 + moved, abs=0.015)
    near_zero = np.abs(grid - crossing) < margin / 2
    np.testing.assert_allclose(np.diff(f[near_zero]), -step, atol=1e-6)
