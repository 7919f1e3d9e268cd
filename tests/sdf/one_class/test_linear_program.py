"""HKR in one dimension by linear programs: its minimiser is a distance, and where classes touch its zero set moves."""

import numpy as np
import pytest

from support.printed.sdf_oneclass import minimiser, touching, uneven

WEIGHT = 100.0


def test_with_a_gap_of_twice_the_margin_the_minimiser_is_the_distance():
    grid, margin = np.linspace(-3, 3, 241), 0.2
    p = (np.abs(grid) <= 1).astype(float)
    q = (np.abs(grid) >= 1 + 2 * margin).astype(float)
    f = minimiser(grid, p / p.sum(), q / q.sum(), margin, WEIGHT)
    distance = 1 - np.abs(grid)
    seen = (p + q) > 0
    # The solver is exact up to 1e-7, and both ends of the gap are points of the grid.
    np.testing.assert_allclose((f - margin)[seen], distance[seen], atol=1e-6)


@pytest.mark.parametrize("margin", [0.2, 0.4])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.25])
def test_where_the_classes_touch_the_zero_set_moves_by_the_ratio_of_densities(margin: float, ratio: float):
    grid, p, q = touching(margin, ratio)
    step = grid[1] - grid[0]
    f = minimiser(grid, p, q, margin, WEIGHT)
    right = grid > 0
    crossing = np.interp(0.0, -f[right], grid[right])
    moved = margin * (1 - ratio) / (1 + ratio)
    # The zero lies on the grid up to one step of .01, and hinges of weight 100 move by another half of one.
    assert crossing == pytest.approx(1 + moved, abs=0.015)
    near_zero = np.abs(grid - crossing) < margin / 2
    np.testing.assert_allclose(np.diff(f[near_zero]), -step, atol=1e-6)


def test_a_small_weight_and_unequal_masses_give_no_distance():
    grid, p, q = uneven()
    # The gap is twice the margin, so only the weight is to blame.
    ends = [int(np.argmin(np.abs(grid - x))) for x in (-1, 1)]
    f = minimiser(grid, p, q, 1.0, 1.0)
    # The distance is 0 at both ends.
    assert f[ends[1]] - f[ends[0]] == pytest.approx(1.6, abs=1e-6)
    f = minimiser(grid, p, q, 1.0, WEIGHT)
    seen = (p + q) > 0
    # The solver is exact up to 1e-7.
    np.testing.assert_allclose((f - 1.0)[seen], (1 - np.abs(grid))[seen], atol=1e-6)
