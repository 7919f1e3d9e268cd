"""The base of losses: torch's three reductions, and arithmetic in float32 at least."""

from abc import ABC
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses.checked_fields import Number

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
