"""Multiplication by a number."""

from typing import final

from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.core.known_constants import EveryNorm
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_2


@final
class Scale(EveryNorm):
    """x -> factor x: constant |factor| (exact, up to the 24 digits with which the factor multiplies).

    Args:
        factor: Number that multiplies the input.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        if not abs(factor) < float("inf"):
            raise ArgumentError(f"Scale.factor must be a finite number, got {factor}.")
        self.factor = factor

    @property
    def gain(self) -> float:
        """|factor|, rounded up to cover its conversion to float32."""
        return abs(self.factor) * (1 + FLOAT32_ROUNDINGS_2)

    def forward(self, x: Tensor) -> Tensor:
        """factor x."""
        return x * self.factor
