"""Straight functions in exact arithmetic, and activations made of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import torch
from torch import Tensor

from lipkit.trace.nodes import Activation, Identity, PiecewiseLinear
from lipkit.trace.nodes.pointwise import ABS, RELU, clamp, leaky_relu


@final
@dataclass(frozen=True)
class Line:
    """rate x + shift."""

    rate: Fraction
    shift: Fraction

    def at(self, x: Fraction) -> Fraction:
        """The value at x."""
        return self.rate * x + self.shift


def is_plain(line: Line) -> bool:
    """Whether float64 evaluates a line with a relative error, so that what is computed as 0 is 0."""
    exact = all(Fraction(float(number)) == number for number in (line.rate, line.shift))
    return exact and (not line.shift or abs(line.rate) in (0, 1))


def straight(knots: tuple[float, ...], lines: list[Line]) -> Activation:
    """A function of straight pieces, by its usual name where it has one."""
    if lines == [Line(Fraction(1), Fraction(0))]:
        return Identity()
    gradients = tuple(float(line.rate) for line in lines)
    if knots == (0.0,) and lines[0].shift == 0 and gradients[1] == 1:
        named = {0.0: RELU, -1.0: ABS}
        return named.get(gradients[0]) or leaky_relu(gradients[0])
    if lines[-1] == Line(Fraction(1), Fraction(0)) and gradients == (0.0, 1.0):
        return clamp(knots[0], math.inf)
    pieces = ", ".join(f"{float(line.rate):g} x {float(line.shift):+g}" for line in lines)
    return PiecewiseLinear(
        f"{pieces}, cut at {', '.join(f'{k:g}' for k in knots)}", _evaluation(knots, lines), knots, gradients
    )


def _evaluation(knots: tuple[float, ...], lines: list[Line]) -> Callable[[Tensor], Tensor]:
    numbers = [(float(line.rate), float(line.shift)) for line in lines]

    def evaluate(z: Tensor) -> Tensor:
        y = numbers[0][0] * z + numbers[0][1]
        for knot, (rate, shift) in zip(knots, numbers[1:], strict=True):
            y = torch.where(z < knot, y, rate * z + shift)
        return y

    return evaluate
