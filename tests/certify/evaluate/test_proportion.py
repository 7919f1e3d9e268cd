"""Percentages against exact fractions: one digit, on the side of the kind."""

import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lipkit.bound import Kind
from lipkit.certify import Proportion
from lipkit.certify.evaluate.proportion import percent


def read(text: str) -> Fraction:
    assert re.fullmatch(r"-?\d+\.\d %", text)
    return Fraction(text.removesuffix(" %")) / 100


@given(st.fractions(min_value=-3, max_value=3), st.sampled_from(Kind))
@example(Fraction(9996, 10000), Kind.LOWER)
@example(Fraction(1, 10**9), Kind.UPPER)
@example(Fraction(-1, 10**9), Kind.LOWER)
def test_a_share_is_printed_on_the_side_of_its_kind(share: Fraction, kind: Kind) -> None:
    said = read(percent(share, kind))
    gap, step = said - share, Fraction(1, 1000)
    if kind is Kind.LOWER:
        assert -step < gap <= 0
    elif kind is Kind.ESTIMATE:
        assert abs(gap) <= step / 2
    else:
        assert 0 <= gap < step


@given(st.integers(0, 10**6), st.integers(1, 10**6))
@example(9999, 10000)
@example(1, 100000)
def test_all_and_none_are_said_of_all_and_none_only(count: int, total: int) -> None:
    count = min(count, total)
    share = Proportion(count, total, 0.0, 1.0)
    assert (share.percent() == "100.0 %") == (count == total)
    assert (share.percent(Kind.UPPER) == "0.0 %") == (count == 0)
    assert share.counted() == f"{count} of {total}, {share.percent()}"
    assert read(share.percent()) <= Fraction(count, total) <= read(share.percent(Kind.UPPER))


@given(st.floats(0, 1), st.floats(0, 1))
def test_an_interval_is_rounded_outwards(a: float, b: float) -> None:
    low, high = sorted((a, b))
    said = Proportion(0, 1, low, high).interval
    first, last = re.fullmatch(r"([\d.]+) to ([\d.]+) %", said).groups()  # pyright: ignore[reportOptionalMemberAccess]
    assert Fraction(first) / 100 <= Fraction(low) <= Fraction(high) <= Fraction(last) / 100


def test_counts_are_exact_and_nothing_is_no_share() -> None:
    assert str(Proportion.of(255, 397, 0.95)) == "255 of 397, 64.2 % (59.2 to 69.0 %)"
    assert Proportion.of(0, 0, 0.95).counted() == "no sample"
    assert percent(Fraction(-1, 10**9), Kind.ESTIMATE) == "0.0 %"


@pytest.mark.parametrize(("count", "total", "low", "high"), [(1, 3, "33.3 %", "33.4 %"), (7, 10, "70.0 %", "70.0 %")])
def test_a_share_of_few_digits_stays_itself(count: int, total: int, low: str, high: str) -> None:
    share = Proportion(count, total, 0.0, 1.0)
    assert (share.percent(), share.percent(Kind.UPPER)) == (low, high)
