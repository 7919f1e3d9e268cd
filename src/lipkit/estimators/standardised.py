"""Columns brought to mean 0 and standard deviation 1 in front of a model."""

from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

# Spreads of columns whose squares have room in float64, as have those of rows a million spreads away.
_LEAST, _MOST = 1e-140, 1e140


@final
class Standardise(nn.Module):
    """x -> (x - mean) * factor, column by column, with stored numbers.

    Guarantee: constant max factor in l2, which lipkit reads from the numbers.
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, mean: Float64[Tensor, " d"], factor: Float64[Tensor, " d"]) -> None:
        super().__init__()
        if mean.ndim != 1 or mean.shape != factor.shape:
            raise ShapeError(
                f"Each column has a mean and a factor, got shapes {tuple(mean.shape)}, {tuple(factor.shape)}."
            )
        if not bool((torch.isfinite(mean) & torch.isfinite(factor) & (factor > 0)).all()):
            raise NonFiniteError("Columns have finite means and finite factors > 0, and some here have not.")
        self.register_buffer("mean", mean)
        self.register_buffer("factor", factor)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Standardised rows."""
        return (x - self.mean) * self.factor


def standardise(rows: Float64[np.ndarray, "n d"]) -> Standardise:
    """The step that standardises these rows; a column that is constant, or beyond float64's squares, is refused."""
    constant = np.flatnonzero((rows == rows[0]).all(0))
    if len(constant):
        raise ArgumentError(
            f"Column {constant[0]} of X is constant in the rows that are trained on, so its unit is unknown "
            f"({len(constant)} such columns); remove it."
        )
    with np.errstate(over="ignore"):
        size = np.ptp(rows, axis=0)
    beyond = np.flatnonzero((size < _LEAST) | (size > _MOST))
    if len(beyond):
        raise ArgumentError(
            f"Column {beyond[0]} of X spans {size[beyond[0]]:.3g}, whose square float64 does not resolve; give it in "
            "another unit."
        )
    return Standardise(torch.from_numpy(rows.mean(0)), torch.from_numpy(1 / rows.std(0)))
