"""Fronts against a comparison of all pairs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.certify.pareto import hypervolume, pareto_front
from lipkit.errors import ArgumentError, NonFiniteError

# Few values, so that ties are common.
points = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=20)


def dominated(p: tuple[int, int], q: tuple[int, int]) -> bool:
    return q[0] >= p[0] and q[1] >= p[1] and q != p


@given(points)
def test_the_front_is_what_no_other_point_dominates(scores: list[tuple[int, int]]):
    table = torch.tensor(scores, dtype=torch.float64).reshape(-1, 2)
    front = pareto_front(table).tolist()
    assert sorted(front) == [i for i, p in enumerate(scores) if not any(dominated(p, q) for q in scores)]
    firsts = [scores[i][0] for i in front]
    assert firsts == sorted(firsts, reverse=True)


@given(points)
def test_the_area_is_that_of_the_unit_squares_below(scores: list[tuple[int, int]]):
    table = torch.tensor(scores, dtype=torch.float64).reshape(-1, 2)
    squares = sum(any(a > i and b > j for a, b in scores) for i in range(4) for j in range(4))
    assert hypervolume(table) == squares
    beyond = sum(any(a > i and b > j for a, b in scores) for i in range(1, 4) for j in range(2, 4))
    assert hypervolume(table, (1.0, 2.0)) == beyond


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(NonFiniteError, match="NaN"):
        pareto_front(torch.tensor([[torch.nan, 1.0]]))
    with pytest.raises(NonFiniteError, match="reference"):
        hypervolume(torch.ones(1, 2), (torch.inf, 0.0))
    with pytest.raises(ArgumentError, match="two scores"):
        pareto_front(torch.ones(1, 3))
