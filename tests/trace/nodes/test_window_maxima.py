"""Maxima over windows and order statistics: counts against brute force, and where the constants are attained."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.errors import ArgumentError
from lipkit.regions import Reach
from lipkit.trace.nodes import OrderStatistics, WindowMax


def box(low: torch.Tensor, high: torch.Tensor) -> Reach:
    center = (low + high) / 2
    return Reach(low, high, center, (high - center).norm() * (1 + 1e-12))


@settings(max_examples=30)
@given(st.data())
def test_the_count_is_the_largest_number_of_windows_over_one_input(data: st.DataObject):
    size = data.draw(st.integers(1, 7))
    windows = data.draw(st.lists(st.lists(st.integers(0, size - 1), min_size=3, max_size=3), min_size=1, max_size=6))
    node = WindowMax((2, size), torch.tensor(windows))
    assert node.count == max(sum(i in window for window in windows) for i in range(size))
    # Attained: the input that most windows hold, far above all others.
    i = max(range(size), key=lambda j: sum(j in window for window in windows))
    z = torch.zeros(1, 2, size, dtype=torch.float64)
    z[..., i] = 10
    step = torch.zeros_like(z)
    step[:, 0, i] = 1
    moved = (node(z + step) - node(z)).flatten()
    for p in (1.0, 2.0, math.inf):
        assert torch.linalg.vector_norm(moved, p).item() == pytest.approx(node.log_constant(p).exp().item(), rel=1e-12)


def test_on_a_box_only_inputs_that_can_win_count():
    node = WindowMax((4,), torch.tensor([[0, 1], [1, 2], [2, 3]]))
    low = torch.tensor([0.0, 5.0, 0.0, 5.0], dtype=torch.float64)
    # 1 wins both of its windows, 3 its own: the count is still 2.
    assert node.within(box(low, low + 1)).count == 2
    # 0 and 3 win, and the window in between is contested: nobody decides two.
    low = torch.tensor([9.0, 5.0, 5.0, 9.0], dtype=torch.float64)
    assert node.within(box(low, low + 1)).count == 1
    assert node.within(box(low, low + 1)).log_constant(2.0) == 0
    # As soon as 1 can beat 0 it decides two.
    high = low + torch.tensor([0.0, 4.5, 0.0, 0.0], dtype=torch.float64)
    assert node.within(box(low, high)).count == 2


def test_windows_outside_of_the_axis_are_refused():
    with pytest.raises(ArgumentError, match=r"positions in 0\.\.2"):
        WindowMax((3,), torch.tensor([[0, 3]]))
    with pytest.raises(ArgumentError, match="an axis and a window"):
        WindowMax((), torch.tensor([[0]]))


def test_order_statistics_have_constant_one_exactly_and_split_so():
    node = OrderStatistics((2, 3), (0, 1, 2))
    for p in (1.0, 1.5, 2.0, math.inf):
        assert node.log_constant(p) == 0
        scale = node.split(p).scale.apply(torch.ones(1, 2, 3, dtype=torch.float64))
        assert (scale == 1).all()


@pytest.mark.parametrize("ranks", [(), (0, 0), (0, -3), (3,), (-4,)])
def test_ranks_are_distinct_and_inside(ranks: tuple[int, ...]):
    with pytest.raises(ArgumentError, match="Ranks must be distinct"):
        OrderStatistics((3,), ranks)


def test_names_say_what_is_chosen():
    assert [str(OrderStatistics((3,), r)) for r in ((-1,), (0,), (0, 1, 2), (1,))] == [
        "max",
        "min",
        "sort",
        "order statistics (1,)",
    ]
