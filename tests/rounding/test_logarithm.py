"""Rounding of logarithms, against exact fractions and 60-digit decimals."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lipkit.rounding.float64 import exp_of, format_exp, log_norm_ratio, log_of, log_product, log_sum, round_log

# Layer norms multiply to 1e150 and more; single numbers are tried over nearly the whole range of float64.
NUMBERS = st.floats(min_value=1e-300, max_value=1e300) | st.floats(min_value=0.5, max_value=2.0)
LOGS = st.floats(min_value=-1500.0, max_value=1500.0) | st.floats(min_value=-2.0, max_value=2.0)
SIDES = st.sampled_from([1.0, -1.0])


def ln(value: Fraction) -> Decimal:
    """log(value) to 60 digits."""
    with localcontext(prec=60):
        return Decimal(value.numerator).ln() - Decimal(value.denominator).ln()


def exp(log: float) -> Decimal:
    """exp(log) to 60 digits."""
    with localcontext(prec=60):
        return Decimal(log).exp()


def on_side(computed: Decimal | Fraction, truth: Decimal | Fraction, side: float) -> bool:
    return computed >= truth if side > 0 else computed <= truth


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def logarithm(value: float, side: float) -> torch.Tensor:
    return round_log(log_of(number(value)), side)


@given(NUMBERS, SIDES)
@example(1.0, 1.0)
@example(math.nextafter(1.0, 2.0), 1.0)
@example(math.nextafter(1.0, 0.0), -1.0)
@example(5e-324, 1.0)
@example(5e-324, -1.0)
def test_a_logarithm_lies_on_its_side_and_near(value: float, side: float):
    computed, truth = Decimal(logarithm(value, side).item()), ln(Fraction(value))
    # Decimal(1).ln() is exactly 0; elsewhere 60 digits leave no doubt about 16.
    assert on_side(computed, truth, side)
    # One ulp of the logarithm, the two it is moved by, and half an ulp of rounding, is below 2^-50.
    assert abs(computed - truth) <= abs(truth) * Decimal(2.0**-50)


@given(LOGS, LOGS, SIDES)
@example(345.0, 345.1, 1.0)
@example(690.1, -690.2, -1.0)
def test_the_logarithm_of_a_product_lies_on_its_side(a: float, b: float, side: float):
    computed, truth = Fraction(log_product(number(a), number(b), side).item()), Fraction(a) + Fraction(b)
    assert on_side(computed, truth, side)
    # Half an ulp of the sum, the two it is moved by, and half an ulp of rounding, is below 2^-50.
    assert abs(computed - truth) <= abs(truth) * Fraction(2.0**-50)


@given(LOGS, LOGS, SIDES)
@example(0.0, -40.0, 1.0)
@example(0.0, -40.0, -1.0)
@example(-math.log(2.0), -math.log(2.0), 1.0)
@example(-math.log(2.0), -math.log(2.0), -1.0)
def test_the_logarithm_of_a_sum_lies_on_its_side(a: float, b: float, side: float):
    computed = Decimal(log_sum(number(a), number(b), side).item())
    with localcontext(prec=60):
        truth = (Decimal(a).exp() + Decimal(b).exp()).ln()
    assert on_side(computed, truth, side)
    # A few ulps of 1 (log1p, exp) and the moves by 2^-50 of 1 and 2^-51 of the result are below 2^-49 of their sum.
    assert abs(computed - truth) <= (1 + abs(truth)) * Decimal(2.0**-49)


@given(LOGS | st.floats(min_value=-746.0, max_value=-707.0), SIDES)
@example(-744.5, -1.0)
@example(-745.5, 1.0)
@example(-745.5, -1.0)
@example(-708.4, 1.0)
@example(-708.4, -1.0)
@example(709.79, 1.0)
@example(709.79, -1.0)
@example(math.ulp(0.0), 1.0)
def test_an_exponential_lies_on_its_side(log: float, side: float):
    computed = exp_of(number(log), side).item()
    assert on_side(Decimal(computed), exp(log), side)


@given(st.floats(min_value=-700.0, max_value=700.0), SIDES)
def test_an_exponential_is_near(log: float, side: float):
    computed, truth = Decimal(exp_of(number(log), side).item()), exp(log)
    # One ulp of exp, the two it is moved by, and half an ulp of rounding, is below 2^-50.
    assert abs(computed - truth) <= truth * Decimal(2.0**-50)


@given(NUMBERS, NUMBERS, SIDES)
def test_a_product_of_numbers_lies_on_its_side_as_an_exact_fraction(a: float, b: float, side: float):
    computed = exp_of(log_product(logarithm(a, side), logarithm(b, side), side), side).item()
    truth = Fraction(a) * Fraction(b)
    assert computed == math.inf if side > 0 and truth > Fraction(1.7976931348623157e308) else math.isfinite(computed)
    if math.isfinite(computed):
        assert Fraction(computed) >= truth if side > 0 else Fraction(computed) <= truth


@pytest.mark.parametrize("side", [1.0, 0.0, -1.0])
def test_zero_and_one_are_kept_exactly(side: float):
    values = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert exp_of(round_log(log_of(values), side), side).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("log", "side", "expected"), [(800.0, 1.0, math.inf), (800.0, 0.0, math.inf)])
def test_overflow_is_infinite_except_from_below(log: float, side: float, expected: float):
    assert exp_of(number(log), side).item() == expected
    assert 1.7e308 < exp_of(number(log), -1.0).item() < math.inf


def test_the_gradient_of_the_round_trip_is_that_of_the_identity():
    for side in (1.0, 0.0, -1.0):
        value = number(3.0).requires_grad_()
        exp_of(round_log(log_of(value), side), side).backward()
        assert value.grad is not None
        # exp(log(3)) (1 +- 2^-51) / 3 is 1 up to a handful of roundings of 2^-53.
        assert abs(value.grad.item() - 1.0) <= 2.0**-48


@pytest.mark.parametrize("value", [0.0, 1e-320, 1e-308])
@pytest.mark.parametrize("side", [1.0, 0.0, -1.0])
def test_the_gradient_is_finite_at_zero_and_below_normal_numbers(value: float, side: float):
    leaf = number(value).requires_grad_()
    exp_of(log_sum(round_log(log_of(leaf), side), log_of(leaf), side), side).backward()
    assert leaf.grad is not None
    assert math.isfinite(leaf.grad.item())


@pytest.mark.parametrize("side", [1.0, 0.0, -1.0])
def test_an_array_is_rounded_entry_by_entry_in_double_precision(side: float):
    logs = torch.tensor([-800.0, -1.0, 0.0, 1.0, 20.0], dtype=torch.float64)
    together = exp_of(logs, side)
    assert together.dtype == torch.float64
    assert together.tolist() == [exp_of(log, side).item() for log in logs]


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (-math.inf, "0"),
        (0.0, "1"),
        (math.log(1.2345), "1.2345"),
        (math.log(123456.0), "1.2346e+05"),
        (1000.0 * math.log(10), "10^1000.0000"),
        (-600.0 * math.log(10), "10^-600.0000"),
    ],
)
def test_numbers_are_said_in_five_digits_or_as_powers_of_ten(log: float, text: str):
    assert format_exp(log) == text


@given(st.floats(1.0, 1e3), st.floats(0.0, 2.0), st.integers(1, 2**62))
@example(1.4542371151022038, 0.0049908300158314, 10**7)
def test_ratios_of_norms_are_rounded_up(q: float, more: float, entries: int) -> None:
    p = q + more
    truth = Decimal(0)
    with localcontext(prec=60):
        if p > q:
            exponent = 1 / Fraction(q) - 1 / Fraction(p)
            truth = Decimal(exponent.numerator) / Decimal(exponent.denominator) * ln(Fraction(entries))
        found = Decimal(log_norm_ratio(q, p, entries))
        assert truth <= found
        # 2^-52 of the exponent times a logarithm of at most 43, and 2^-50 relative.
        assert found <= truth * (1 + Decimal(2) ** -49) + Decimal(44) * Decimal(2) ** -52
    assert log_norm_ratio(p, q, entries) == 0 or p < q
    assert log_norm_ratio(2.0, math.inf, entries) >= 0.5 * math.log(entries) * (1 - 2.0**-52)
