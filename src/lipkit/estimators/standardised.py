"""Columns brought to one unit in front of a model: by mean and deviation, by medians, on a scale with logarithms."""

from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.float64 import gamma, vector_norms

# Spreads of columns whose squares have room in float64, as have those of rows a million spreads away.
_LEAST, _MOST = 1e-140, 1e140
# The median of |z| for a standard normal z.
_QUARTILE = 0.6744897501960817


@final
class Standardise(nn.Module):
    """x -> z = (x - mean) * factor, column by column, with stored numbers; `logarithmic` x -> asinh z.

    asinh z is z near 0 and sign(z) log(2 |z|) far away. Unlike a logarithm it is defined for all numbers, and its slope
    1/sqrt(1 + z^2) is at most 1: log x itself has no constant near 0.

    Guarantee: constant max factor in l2, which lipkit reads from the numbers; it is reached by a column at its mean.

    Args:
        mean: What is taken off each column, be it its mean or its median.
        factor: What each column is multiplied by then.
        logarithmic: Whether asinh follows.
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, mean: Float64[Tensor, " d"], factor: Float64[Tensor, " d"], logarithmic: bool = False) -> None:
        super().__init__()
        if mean.ndim != 1 or mean.shape != factor.shape:
            raise ShapeError(
                f"Each column has a mean and a factor, got shapes {tuple(mean.shape)}, {tuple(factor.shape)}."
            )
        if not bool((torch.isfinite(mean) & torch.isfinite(factor) & (factor > 0)).all()):
            raise NonFiniteError("Columns have finite means and finite factors > 0, and some here have not.")
        self.register_buffer("mean", mean)
        self.register_buffer("factor", factor)
        self.logarithmic: bool = logarithmic

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Standardised rows."""
        z = (x - self.mean) * self.factor
        return z.asinh() if self.logarithmic else z

    def moved(self, found: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """How far rounding moves standardised points: an upper bound of the distance to what real numbers give."""
        # A difference and a product are rounded, z (1 + e). By its slope asinh z changes by |e| asinh |z| at most, as
        # asinh is concave, and torch computes it to a few units of the last digit.
        return gamma(16 if self.logarithmic else 4) * vector_norms(found, 2.0)


def standardise(rows: Float64[np.ndarray, "n d"], robust: bool = False, logarithmic: bool = False) -> Standardise:
    """The step that standardises these rows; a column that is constant, or beyond float64's squares, is refused.

        mean and 1/std, or if `robust` the median and 0.6745 / median |x - median|,

    which outliers among fewer than half of the rows do not move far, and which agree with the former two for normal
    columns. Of a column that has one value in half of its rows the latter median is 0; it is refused.
    Reference: Iglewicz and Hoaglin 1993 for medians; the code of Béthune 2024 chooses between such scales.
    """
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
    center, spread = _medians(rows, size) if robust else (rows.mean(0), rows.std(0))
    return Standardise(torch.from_numpy(center), torch.from_numpy(1 / spread), logarithmic)


def _medians(rows: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    center = np.median(rows, axis=0)
    spread = np.median(np.abs(rows - center), axis=0) / _QUARTILE
    crowded = np.flatnonzero(spread * _MOST <= size)
    if len(crowded):
        raise ArgumentError(
            f"Column {crowded[0]} of X has one value in half of its rows or nearly so, and no spread around its median "
            f"({len(crowded)} such columns); set robust=False, or remove it."
        )
    return center, spread
