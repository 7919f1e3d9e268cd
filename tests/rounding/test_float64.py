"""Logarithms rounded to a side, against decimal arithmetic of sixty digits."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.rounding.float64 import inverse_scale, log_down, log_up, undo_squarings, widen_log

POSITIVE = st.floats(1e-300, 1e300)
# What a proof may lose here: a few units in the last place of the logarithm, or of one.
LOOSE = 2.0**-47


def _tensor(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


@given(value=POSITIVE, exponent=st.integers(-1000, 1000))
def test_logarithms_are_on_their_side_of_the_truth(value: float, exponent: int) -> None:
    with localcontext() as context:
        context.prec = 60
        truth = Decimal(value).ln() + exponent * Decimal(2).ln()
        up, down = log_up(_tensor(value), _tensor(exponent)), log_down(_tensor(value), _tensor(exponent))
        assert Decimal(float(down)) <= truth <= Decimal(float(up))
        assert float(up) - float(down) <= LOOSE * (abs(float(truth)) + abs(math.log(value)) + abs(exponent) + 1)


@given(log=st.floats(-690, 690), error=st.one_of(st.just(0.0), POSITIVE))
def test_errors_widen_a_logarithm_to_the_safe_side(log: float, error: float) -> None:
    upper = float(widen_log(_tensor(log), _tensor(error), 1.0))
    lower = float(widen_log(_tensor(log), _tensor(error), -1.0))
    with localcontext() as context:
        context.prec = 60
        value = Decimal(log).exp()
        above = (value + Decimal(error)).ln()
        assert above <= Decimal(upper)
        assert upper - float(above) <= LOOSE * (abs(upper) + 1)
        below = value - Decimal(error)
        if below <= 0:
            assert lower == -math.inf
        elif lower > -math.inf:
            assert Decimal(lower) <= below.ln()


def test_nothing_is_widened_by_the_error_alone() -> None:
    none = torch.tensor([-math.inf, -math.inf], dtype=torch.float64)
    error = torch.tensor([0.0, 3.0], dtype=torch.float64)
    assert widen_log(none, error, -1.0).tolist() == [-math.inf, -math.inf]
    upper = widen_log(none, error, 1.0).tolist()
    assert upper[0] == -math.inf
    assert math.log(3) <= upper[1] <= math.log(3) + LOOSE


@given(
    first=st.floats(1e-100, 1e100),
    errors=st.lists(st.floats(0.0, 1e-3), min_size=0, max_size=8),
)
def test_a_chain_of_squares_is_walked_back_above_the_truth(first: float, errors: list[float]) -> None:
    # s_0 = first; r_k = s_k units[k] in [1/2, 1); s_(k+1) is as much smaller than r_k^2 as the error allows.
    size, units = _tensor(first), []
    with localcontext() as context:
        context.prec = 60
        truth = Decimal(first)
        for error in errors:
            unit = inverse_scale(size)
            units.append(unit)
            squared = (size * unit) ** 2
            size = (squared - 0.9 * error).clamp(min=1e-6)
            # The truth that is consistent with it: at most r_k^2 <= s + error.
            assert float(squared) <= float(size) + error + 1e-15
        found = float(undo_squarings(size, units, errors))
        assert Decimal(found) >= truth.ln()


def test_zero_stays_zero_and_keeps_a_derivative_of_zero() -> None:
    size = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    found = undo_squarings(size, [inverse_scale(size.detach())], [1e-15])
    assert found.tolist() == [-math.inf, -math.inf]
    (gradient,) = torch.autograd.grad(found.nan_to_num(neginf=0.0).sum(), size)
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [0.0, 2.0**-1000, 0.75, 1.0, 3.0, 2.0**1000])
def test_scales_are_powers_of_two(value: float) -> None:
    scaled = float(inverse_scale(_tensor(value)) * value)
    assert scaled == 0.0 or 0.5 <= scaled < 1.0
