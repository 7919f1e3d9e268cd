"""The base of losses: checked hyper-parameters, torch's three reductions, and arithmetic in float32 at least."""

import math
from abc import ABC
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

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


Reduction = Literal["none", "mean", "sum"]


class Loss(nn.Module, ABC):
    """A loss with torch's reductions: one number for each sample, or their mean, or their sum.

    Hyper-parameters are attributes that may be set between steps (`loss.epsilon = schedule(progress)`) and are
    checked each time. Inputs in half precision are evaluated in float32; gradients come back in the input's type.
    """

    def __init__(self, reduction: Reduction = "mean", **numbers: float | Tensor) -> None:
        """Set the reduction, and the hyper-parameters of a subclass by their names."""
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            raise ArgumentError(f"reduction is 'none', 'mean' or 'sum', as in torch, got {reduction!r}.")
        self.reduction: Reduction = reduction
        for name, number in numbers.items():
            setattr(self, name, number)

    def reduce(self, losses: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The losses of the samples themselves, their mean or their sum; an empty batch has no mean and is refused."""
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        if losses.numel() == 0:
            raise ShapeError("The mean loss of an empty batch does not exist; skip the batch, or use reduction='sum'.")
        return losses.mean()

    def extra_repr(self) -> str:
        """The numbers of this loss, for its text."""
        fields = {n: f for c in reversed(type(self).__mro__) for n, f in vars(c).items() if isinstance(f, Number)}
        return ", ".join(
            [*(f"{name}={float(getattr(self, name)):g}" for name in fields), f"reduction={self.reduction!r}"]
        )


def wide(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same numbers in float32 at least: half precision ends at 65504 or has 8 bits."""
    if not values.is_floating_point():
        raise ArgumentError(f"A loss needs real floating point scores, got {values.dtype}; convert them with .float().")
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def signs(input: Float[Tensor, "..."], target: Tensor) -> Float[Tensor, "..."]:
    """+1 where the target is positive and -1 elsewhere, so labels may be {0, 1}, {-1, +1} or booleans."""
    if target.shape != input.shape:
        raise ShapeError(
            f"Binary targets have the shape of the scores, {tuple(input.shape)}, got {tuple(target.shape)}; reshape."
        )
    return torch.where(target > 0, 1.0, -1.0).to(input.dtype)
