"""Bound: every value lies on the safe side of the exact fraction of the floats it was made from."""

import dataclasses
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lipkit.bound import Bound, Kind
from lipkit.rounding.float64 import round_log

NUMBERS = st.floats(min_value=1e-300, max_value=1e300)
TAME = st.floats(min_value=1e-75, max_value=1e75)
CERTIFYING = st.sampled_from([Kind.EXACT, Kind.UPPER])


def made(value: float, kind: Kind = Kind.UPPER) -> Bound:
    return Bound.from_value(value, kind, "given")


def fraction(bound: Bound) -> Fraction:
    return Fraction(bound.value.item())


@given(NUMBERS, CERTIFYING)
@example(1e300, Kind.UPPER)
@example(1e-300, Kind.EXACT)
def test_an_upper_value_is_never_below_the_number_and_a_lower_one_never_above(value: float, kind: Kind):
    assert fraction(made(value, kind)) >= Fraction(value) >= fraction(made(value, Kind.LOWER))
    exact = made(value, Kind.EXACT)
    assert exact.lower is not None
    assert fraction(exact.lower) <= Fraction(value) <= fraction(exact)


@given(st.lists(TAME, min_size=2, max_size=4), CERTIFYING)
@example([1e75, 1e75, 1e75, 1e75], Kind.EXACT)
@example([1e-75, 1e-75, 1e-75], Kind.UPPER)
@example([3.0, 1.0 / 3.0], Kind.EXACT)
def test_a_product_is_never_below_the_exact_product_and_close_to_it(values: list[float], kind: Kind):
    bound, truth = made(values[0], kind), Fraction(values[0])
    for value in values[1:]:
        bound, truth = bound.compose(made(value, kind)), truth * Fraction(value)
    assert fraction(bound) >= truth
    # Twelve moves of 2^-51 of logarithms below 700: 3.8e-12.
    assert fraction(bound) <= truth * (1 + Fraction(4, 10**12))


@given(NUMBERS, NUMBERS)
@example(1e300, 1e300)
@example(1e-300, 1e-300)
def test_a_product_beyond_float64_is_still_on_the_safe_side(a: float, b: float):
    value, truth = made(a).compose(made(b)).value.item(), Fraction(a) * Fraction(b)
    assert value == math.inf or Fraction(value) >= truth
    lowered = made(a, Kind.LOWER).scale(b)
    assert Fraction(lowered.value.item()) <= truth


@given(NUMBERS, NUMBERS)
@example(1.0, 1e-17)
def test_a_sum_is_never_below_the_exact_sum_and_close_to_it(a: float, b: float):
    truth = Fraction(a) + Fraction(b)
    value = fraction(made(a, Kind.EXACT).sum(made(b, Kind.UPPER)))
    assert truth <= value <= truth * (1 + Fraction(4, 10**12))


@given(TAME, st.floats(min_value=-1e75, max_value=1e75, allow_subnormal=False))
@example(7.0, 0.0)
def test_scaling_rounds_to_the_side_of_the_kind(value: float, factor: float):
    truth = Fraction(value) * abs(Fraction(factor))
    assert fraction(made(value, Kind.UPPER).scale(factor)) >= truth
    assert fraction(made(value, Kind.LOWER).scale(factor)) <= truth
    exact = made(value, Kind.EXACT).scale(torch.tensor(factor, dtype=torch.float64))
    assert exact.lower is not None
    assert fraction(exact.lower) <= truth <= fraction(exact)


@given(NUMBERS)
@example(3.0)
@example(5.0)
@example(7.0)
def test_the_logarithm_of_a_factor_is_rounded_before_it_cancels(factor: float):
    # exp(log_value) factor is 1 up to the rounding of log(factor), so nothing else hides that rounding.
    log_value = -math.log(factor)
    with localcontext(prec=60):
        truth = Decimal(log_value) + Decimal(factor).ln()
    logarithm = torch.tensor(log_value, dtype=torch.float64)
    assert Decimal(Bound(logarithm, Kind.UPPER, "given").scale(factor).log_value.item()) >= truth
    assert Decimal(Bound(logarithm, Kind.LOWER, "given").scale(factor).log_value.item()) <= truth


@given(NUMBERS, NUMBERS)
def test_a_maximum_with_a_lower_bound_is_a_true_lower_bound(a: float, b: float):
    truth = max(Fraction(a), Fraction(b))
    assert fraction(made(a, Kind.EXACT).max(made(b, Kind.LOWER))) <= truth
    assert fraction(made(a, Kind.LOWER).max(made(b, Kind.LOWER))) <= truth
    assert fraction(made(a, Kind.EXACT).max(made(b, Kind.UPPER))) >= truth


def test_an_exact_number_without_its_lower_side_adds_nothing_to_a_lower_bound():
    rounded_up = dataclasses.replace(made(3.0, Kind.EXACT), lower=None)
    assert rounded_up.max(made(2.0, Kind.LOWER)).value.item() <= 2.0


def test_constants_of_exactly_zero_and_one_stay_exact():
    for kind in Kind:
        assert made(1.0, kind).value.item() == 1.0
        assert made(0.0, kind).value.item() == 0.0
    assert made(1.0).compose(made(1.0)).value.item() == 1.0


def test_outward_moves_up_down_or_not_at_all():
    log = torch.tensor([-2.0, 3.0], dtype=torch.float64)
    assert (round_log(log, Kind.UPPER.side) > log).all()
    assert (round_log(log, Kind.LOWER.side) < log).all()
    assert torch.equal(round_log(log, Kind.ESTIMATE.side), log)
