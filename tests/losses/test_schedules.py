"""Schedules: ends, middles, monotone ramps, and a loss that follows one."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipkit.errors import ArgumentError
from lipkit.losses import Constant, Cosine, Exponential, Linear, LipschitzMargin, Piecewise, WarmCosine

RAMPS = [Linear, Cosine, Exponential]


@pytest.mark.parametrize("ramp", RAMPS)
@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 1), st.lists(st.floats(0, 1)))
def test_ramps_are_monotone_between_their_ends(
    ramp: type[Linear], start: float, end: float, a: float, b: float, times: list[float]
):
    since, until = min(a, b), max(a, b)
    schedule = ramp(start, end, since, until)
    assert schedule(1.0) == end
    assert schedule(0.0) == (start if until > 0 else end)
    found = [schedule(t) for t in sorted(times)]
    low, high = min(start, end), max(start, end)
    # Interpolation rounds by a few units in the last place.
    assert all(low * (1 - 1e-12) <= v <= high * (1 + 1e-12) for v in found)
    signed = [v if end >= start else -v for v in found]
    assert all(y >= x - 1e-12 * high for x, y in pairwise(signed))


def test_values_in_the_middle():
    assert Constant(3.0)(0.4) == 3.0
    assert Linear(1.0, 3.0, 0.2, 0.6)(0.3) == pytest.approx(1.5)
    assert Cosine(1.0, 3.0)(0.5) == pytest.approx(2.0)
    assert Cosine(1.0, 3.0)(1 / 3) == pytest.approx(1.5)
    assert Exponential(1.0, 16.0)(0.25) == pytest.approx(2.0)
    corner = Piecewise(((0.0, 1.0), (0.5, 2.0), (0.5, 5.0), (0.9, 3.0)))
    assert [corner(t) for t in (0.0, 0.25, 0.5, 0.7, 0.9, 1.0)] == pytest.approx([1.0, 1.5, 5.0, 4.0, 3.0, 3.0])
    assert Piecewise(((0.5, 2.0),))(0.1) == 2.0
    warm = WarmCosine(0.2)
    assert [warm(t) for t in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([1e-3, 0.5, 1.0, 0.5, 0.0])
    assert WarmCosine(0.0)(0.0) == 1.0


def test_a_loss_follows_a_schedule():
    loss, ramp = LipschitzMargin(0.0), Linear(0.0, 0.5, until=0.5)
    seen = []
    for step in range(5):
        loss.epsilon = ramp(step / 4)
        seen.append(loss.epsilon)
    assert seen == pytest.approx([0.0, 0.25, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Linear(0.0, 1.0, 0.6, 0.5), "since <= until"),
        (lambda: Linear(0.0, math.inf), "finite"),
        (lambda: Exponential(0.0, 1.0), "ends > 0"),
        (lambda: Constant(math.nan), "finite"),
        (lambda: Piecewise(()), "at least one"),
        (lambda: Piecewise(((0.5, 1.0), (0.2, 1.0))), "sort"),
        (lambda: Linear(0.0, 1.0)(1.5), "divide the step"),
        (lambda: Constant(1.0)(math.nan), "Progress"),
        (lambda: WarmCosine(1.0), "share of the rise"),
        (lambda: WarmCosine(math.nan), "share of the rise"),
    ],
)
def test_what_is_no_schedule_is_refused(make: Callable[[], object], complaint: str):
    with pytest.raises(ArgumentError, match=complaint):
        make()
