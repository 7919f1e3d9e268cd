"""Hyper-parameters of losses: plain numbers, checked at every assignment, so that a schedule cannot break a loss."""

import math
from typing import final

from lipkit.errors import ArgumentError


@final
class Number:
    """A float attribute between two ends; `open_low` excludes the lower one. Reading it gives a Python float."""

    def __init__(self, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> None:
        self.low, self.high, self.open_low = low, high, open_low

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type | None = None) -> float:
        if instance is None:
            raise AttributeError(f"{self.name} is a number of each loss, not of the class; make an instance.")
        return instance.__dict__[f"_{self.name}"]

    def __set__(self, instance: object, value: float) -> None:
        number = float(value)
        excluded = self.open_low and number == self.low
        if excluded or not (math.isfinite(number) and self.low <= number <= self.high):
            raise ArgumentError(f"{self.name} of {type(instance).__name__} lies in {self}, got {value}.")
        instance.__dict__[f"_{self.name}"] = number

    def __str__(self) -> str:
        left = "(" if self.open_low or math.isinf(self.low) else "["
        return f"{left}{self.low:g}, {self.high:g}{')' if math.isinf(self.high) else ']'}"
