"""Hyper-parameters of losses: plain numbers, checked at every assignment, so that a schedule cannot break a loss."""

import math
from typing import Any, final

from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError


class Number:
    """A float attribute between two ends; `open_low` excludes the lower one. Reading it gives a Python float."""

    def __init__(self, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> None:
        self.low, self.high, self.open_low = low, high, open_low

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type | None = None) -> float:
        return self.assigned_to(instance)

    def assigned_to(self, instance: object) -> Any:
        """The value that was assigned to this field of a loss."""
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


@final
class LiveNumber(Number):
    """A number that may also be a tensor without axes, which is read when the loss is: a recorded step changes it.

    A tensor on the CPU is checked; on a GPU it is not looked at, because that would wait for it in every step.
    """

    def __get__(self, instance: object, owner: type | None = None) -> float | Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.assigned_to(instance)

    def __set__(self, instance: object, value: float | Tensor) -> None:
        if not isinstance(value, Tensor):
            super().__set__(instance, value)
            return
        if value.ndim:
            raise ShapeError(f"{self.name} is one number, got a tensor of shape {tuple(value.shape)}.")
        if value.device.type == "cpu":
            super().__set__(instance, float(value))
        instance.__dict__[f"_{self.name}"] = value
