"""Sine and cosine."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_32
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.pointwise import Activation


@final
@dataclass(frozen=True, eq=False)
class Sine(Activation):
    """sin(z + quarters pi / 2): sine at 0 quarters, cosine at 1; the derivative has one quarter more."""

    quarters: int

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        wave = (torch.sin, torch.cos)[self.quarters % 2](z)
        return -wave if self.quarters % 4 >= 2 else wave

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        finite = torch.isfinite(low) & torch.isfinite(high)
        left, right = torch.where(finite, low, 0.0), torch.where(finite, high, 0.0)
        first, last = self(left), self(right)
        slack = ROUNDINGS_8
        # In turns from the maximum: a maximum lies inside if an integer does, a minimum if an integer and a half does.
        # Turns are rounded three times; what is within that of an end counts as inside.
        turns = [(x + (self.quarters - 1) * (math.pi / 2)) / (2 * math.pi) for x in (left, right)]
        blur = ROUNDINGS_32 * (1 + turns[0].abs() + turns[1].abs())
        start, end = turns[0] - blur, turns[1] + blur
        top = torch.floor(end) >= start
        bottom = torch.floor(end - 0.5) >= start - 0.5
        smallest = torch.where(bottom | ~finite, -1.0, torch.minimum(first, last) - slack)
        largest = torch.where(top | ~finite, 1.0, torch.maximum(first, last) + slack)
        return smallest.clamp(min=-1.0), largest.clamp(max=1.0)

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return Sine(self.quarters + 1).values(low, high)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return Sine(self.quarters + 2).values(low, high)

    def __str__(self) -> str:
        return ("sin", "cos", "-sin", "-cos")[self.quarters % 4]


@final
@dataclass(frozen=True, eq=False)
class SquaredSine(Activation):
    """sin(z + quarters pi / 2)^2, whose derivative is the sine of 2 z + quarters pi, and whose period is pi."""

    quarters: int

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return Sine(self.quarters)(z) ** 2

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        left, right = Sine(self.quarters).values(low, high)
        most = torch.maximum(left.abs(), right.abs()) ** 2 * (1 + ROUNDINGS_8)
        least = torch.maximum(left, -right).clamp(min=0.0) ** 2 * (1 - ROUNDINGS_8)
        return least, most.clamp(max=1.0)

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return Sine(2 * self.quarters).values(2 * low, 2 * high)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        under, over = Sine(2 * self.quarters + 1).values(2 * low, 2 * high)
        return 2 * under, 2 * over

    def __str__(self) -> str:
        return f"{Sine(self.quarters)}^2"


SIN, COS = Sine(0), Sine(1)
