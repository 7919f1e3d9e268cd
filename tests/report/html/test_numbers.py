"""What is printed keeps its side: compared as rational numbers, nothing is forgiven."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from lipkit.bound import Kind
from lipkit.report.html.numbers import constant, digits, layer_norm


def near_decimals() -> list[float]:
    """Floats within two steps of decimal numbers of four digits, where a division by a power of ten goes wrong."""
    draw = np.random.default_rng(0)
    found: list[float] = []
    for _ in range(2000):
        value = float(f"{draw.integers(1000, 10000)}e{draw.integers(-9, 6)}")
        for _ in range(draw.integers(0, 3)):
            value = float(np.nextafter(value, draw.choice([0.0, np.inf])))
        found.append(value)
    return found


@pytest.mark.parametrize("count", [4, 6])
def test_a_number_is_rounded_to_its_side(count: int) -> None:
    for value in near_decimals():
        below, above = Fraction(digits(value, Kind.LOWER, count)), Fraction(digits(value, Kind.UPPER, count))
        assert below <= Fraction(value) <= above
        # One unit of the last digit, and none for a number that has so few digits.
        assert above - below <= Fraction(value) * Fraction(1, 10 ** (count - 1))
        assert below == above or Fraction(str(value)) != Fraction(value)


@pytest.mark.parametrize("log", [-2.3025811, 0.0, 1e-17, 0.6931471805599453, 30.5, 700.12345678, -900.5, 1e4])
def test_a_constant_is_rounded_to_its_side(log: float) -> None:
    with mpmath.workdps(60):
        truth = mpmath.exp(mpmath.mpf(log))
        below, above = (_read(constant(log, kind, 6)) for kind in (Kind.LOWER, Kind.UPPER))
        assert below <= truth <= above
        assert above / below - 1 <= mpmath.mpf("3e-4")
    assert constant(float("-inf"), Kind.UPPER) == "0"


@pytest.mark.parametrize(
    ("log", "kind", "said"),
    [
        (4e-15, Kind.EXACT, "1"),
        (-4e-15, Kind.EXACT, "1"),
        (4e-15, Kind.UPPER, "1 + 4.1e-15"),
        (-4e-15, Kind.LOWER, "0.9999"),
        (0.6931471805599453, Kind.EXACT, "2"),
        (5000.0, Kind.EXACT, "10^2171.4724"),
    ],
)
def test_only_exact_norms_of_layers_are_rounded_to_nearest(log: float, kind: Kind, said: str) -> None:
    assert layer_norm(log, kind) == said


def _read(text: str) -> Any:
    return mpmath.mpf(10) ** mpmath.mpf(text[3:]) if text.startswith("10^") else mpmath.mpf(text)


def test_an_upper_bound_a_little_above_one_says_by_how_much():
    assert layer_norm(math.log1p(1.21e-7), Kind.UPPER) == "1 + 1.3e-07"
    assert layer_norm(0.0, Kind.UPPER) == "1"
    assert layer_norm(math.log(0.99996), Kind.UPPER) == "1"
    assert layer_norm(math.log(1.0012), Kind.UPPER) == "1.002"
    assert layer_norm(math.log1p(1.21e-7), Kind.EXACT) == "1"
