"""Schedules: ends, middles, monotone ramps, and a loss that follows one."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses import (
    EMMA,
    ConstantSchedule,
    CosineSchedule,
    Dials,
    ExponentialSchedule,
    LinearSchedule,
    LipschitzMargin,
    PiecewiseSchedule,
    WarmCosineSchedule,
)

RAMPS = [LinearSchedule, CosineSchedule, ExponentialSchedule]


@pytest.mark.parametrize("ramp", RAMPS)
@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 1), st.lists(st.floats(0, 1)))
def test_ramps_are_monotone_between_their_ends(
    ramp: type[LinearSchedule], start: float, end: float, a: float, b: float, times: list[float]
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
    assert ConstantSchedule(3.0)(0.4) == 3.0
    assert LinearSchedule(1.0, 3.0, 0.2, 0.6)(0.3) == pytest.approx(1.5)
    assert CosineSchedule(1.0, 3.0)(0.5) == pytest.approx(2.0)
    assert CosineSchedule(1.0, 3.0)(1 / 3) == pytest.approx(1.5)
    assert ExponentialSchedule(1.0, 16.0)(0.25) == pytest.approx(2.0)
    corner = PiecewiseSchedule(((0.0, 1.0), (0.5, 2.0), (0.5, 5.0), (0.9, 3.0)))
    assert [corner(t) for t in (0.0, 0.25, 0.5, 0.7, 0.9, 1.0)] == pytest.approx([1.0, 1.5, 5.0, 4.0, 3.0, 3.0])
    assert PiecewiseSchedule(((0.5, 2.0),))(0.1) == 2.0
    warm = WarmCosineSchedule(0.2)
    assert [warm(t) for t in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([1e-3, 0.5, 1.0, 0.5, 0.0])
    assert WarmCosineSchedule(0.0)(0.0) == 1.0


def test_a_loss_follows_a_schedule():
    loss, ramp = LipschitzMargin(0.0), LinearSchedule(0.0, 0.5, until=0.5)
    seen = []
    for step in range(5):
        loss.epsilon = ramp(step / 4)
        seen.append(loss.epsilon)
    assert seen == pytest.approx([0.0, 0.25, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: LinearSchedule(0.0, 1.0, 0.6, 0.5), "since <= until"),
        (lambda: LinearSchedule(0.0, math.inf), "finite"),
        (lambda: ExponentialSchedule(0.0, 1.0), "ends > 0"),
        (lambda: ConstantSchedule(math.nan), "finite"),
        (lambda: PiecewiseSchedule(()), "at least one"),
        (lambda: PiecewiseSchedule(((0.5, 1.0), (0.2, 1.0))), "sort"),
        (lambda: LinearSchedule(0.0, 1.0)(1.5), "divide the step"),
        (lambda: ConstantSchedule(1.0)(math.nan), "Progress"),
        (lambda: WarmCosineSchedule(1.0), "share of the rise"),
        (lambda: WarmCosineSchedule(math.nan), "share of the rise"),
    ],
)
def test_what_is_no_schedule_is_refused(make: Callable[[], object], complaint: str):
    with pytest.raises(ArgumentError, match=complaint):
        make()


def test_dials_follow_their_schedules():
    dials = Dials(torch.device("cpu"))
    dials.turn(0.25)
    ramp, wave = LinearSchedule(0.0, 2.0)(dials), CosineSchedule(1.0, 0.0)(dials)
    assert (float(ramp), float(wave)) == pytest.approx((0.5, (1 + math.cos(math.pi / 4)) / 2))
    loss = EMMA(LinearSchedule(0.0, 2.0)(dials))
    z, label, pairs = torch.tensor([[3.0, 0.0]]), torch.tensor([0]), torch.ones(2, 2)
    for progress in (0.1, 0.8):
        # The tensors that were given before change, and so does a loss that holds one.
        dials.turn(progress)
        assert (float(ramp), float(wave)) == pytest.approx((2 * progress, (1 + math.cos(math.pi * progress)) / 2))
        assert float(loss(z, label, pairs)) == pytest.approx(math.log1p(math.exp(2 * progress - 3)))
    dials.close()
    assert LinearSchedule(0.0, 2.0)(dials) is ramp
    with pytest.raises(ArgumentError, match="recorded step"):
        LinearSchedule(0.0, 3.0)(dials)


def test_a_tensor_as_a_number_is_one_number_in_range():
    with pytest.raises(ArgumentError, match="epsilon of EMMA"):
        EMMA(torch.tensor(-1.0))
    with pytest.raises(ShapeError, match="one number"):
        EMMA(torch.ones(2))
    assert "epsilon=0.5" in repr(EMMA(torch.tensor(0.5)))
