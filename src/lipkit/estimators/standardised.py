"""Columns brought to mean 0 and standard deviation 1 in front of a model."""

from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.errors import ArgumentError


@final
class Standardise(nn.Module):
    """x -> (x - mean) * factor, column by column, with stored numbers.

    Guarantee: constant max factor in l2, which lipkit reads from the numbers.
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, mean: Float64[Tensor, " d"], factor: Float64[Tensor, " d"]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("factor", factor)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Standardised rows."""
        return (x - self.mean) * self.factor


def standardise(rows: Float64[np.ndarray, "n d"]) -> Standardise:
    """The step that standardises these rows; a column that is constant is refused."""
    constant = np.flatnonzero(np.ptp(rows, axis=0) == 0)
    if len(constant):
        raise ArgumentError(
            f"Column {constant[0]} of X is constant in the rows that are trained on, so its unit is unknown "
            f"({len(constant)} such columns); remove it."
        )
    return Standardise(torch.from_numpy(rows.mean(0)), torch.from_numpy(1 / rows.std(0)))
