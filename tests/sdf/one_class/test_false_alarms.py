"""Thresholds against counting all orders, and against simulation with and without an attack."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf.one_class import rows_needed, threshold


@given(st.lists(st.integers(0, 3), min_size=5, max_size=5), st.sampled_from([0.2, 0.3, 0.4]))
def test_no_order_of_exchangeable_scores_breaks_the_share(values: list[int], share: float):
    # Five scores in any order, ties included: four are held out, the fifth is new. All orders are counted.
    alarms = [
        order[4] < float(threshold(torch.tensor(order[:4], dtype=torch.float64), share))
        for order in permutations(map(float, values))
    ]
    rank = int(share * 5 + 1e-9)
    assert np.mean(alarms) <= rank / 5 <= share


def test_interpolated_percentiles_break_the_share_and_order_statistics_keep_it():
    random, runs = np.random.default_rng(0), 100_000
    scores = np.exp(random.normal(size=(runs, 21)))
    held, fresh = scores[:, :20], scores[:, 20]
    percentile = np.mean(fresh < np.percentile(held, 10, axis=1))
    ranked = np.mean(fresh < np.sort(held, axis=1)[:, 1])
    # The percentile lies between the second and the third of 20: nine tenths of the way, and so does its share, nearly.
    # Four deviations of a share of 100,000 runs are 0.0042 at 0.13, and 0.0037 at 2/21.
    assert percentile > 0.1 + 0.02
    assert ranked == pytest.approx(2 / 21, abs=0.0037)
    assert float(threshold(torch.from_numpy(held[0]), 0.1)) == np.sort(held[0])[1]


def test_the_lowered_threshold_keeps_the_share_under_attack():
    random, runs, eps = np.random.default_rng(1), 40_000, 0.1
    held = -np.linalg.norm(random.normal(size=(runs // 10, 99, 5)), axis=2)
    level = np.array([float(threshold(torch.from_numpy(one), 0.1)) for one in held])
    fresh = -np.linalg.norm(random.normal(size=(runs // 10, 10, 5)), axis=2) - eps
    plain, lowered = np.mean(fresh < level[:, None]), np.mean(fresh < level[:, None] - eps)
    # Deviation of the mean of 4,000 rates, each spread by its 99 rows (.03) and ten new ones (.1): below .002.
    assert lowered == pytest.approx(0.1, abs=0.007)
    assert plain > 0.1 + 0.01


@pytest.mark.parametrize(("share", "needed"), [(0.1, 9), (0.05, 19), (0.3, 3), (0.5, 1), (0.29, 3), (0.01, 99)])
def test_the_number_of_rows_that_is_needed_is_the_least(share: float, needed: int):
    assert rows_needed(share) == needed
    assert float(threshold(torch.arange(float(needed)), share)) == 0.0
    with pytest.raises(ArgumentError, match=f"needs {needed} held-out rows or more, got {needed - 1}"):
        threshold(torch.arange(float(needed - 1)), share)


def test_shares_are_decimal_numbers():
    # The float 0.3 is below 3/10; 9 rows make k = 3 all the same.
    assert float(threshold(torch.arange(9.0), 0.3)) == 2.0


def test_what_is_no_share_or_no_score_is_refused():
    with pytest.raises(ArgumentError, match=r"in \(0, 1\), got 1.0"):
        threshold(torch.arange(9.0), 1.0)
    with pytest.raises(NonFiniteError, match="NaN"):
        threshold(torch.full((9,), torch.nan), 0.5)
    with pytest.raises((ShapeError, TypeError)):
        threshold(torch.zeros(3, 3), 0.5)
