"""Storing a proven weight in fewer digits without enlarging its norm."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.rounding.slacks import ROUNDINGS_8192, UNIT_OF

# Unit roundoff of the types a weight may be computed in.


def shrink(rows: int, cols: int, taps: int, dtype: torch.dtype) -> float:
    """A factor c < 1 such that rounding c W to `dtype` leaves an operator of norm at most ||W|| <= 1.

    Rounding changes each entry by at most u times itself, so the operator by E with
        ||E|| <= sum over taps of ||E_t||_F <= u sqrt(taps) ||W||_F <= u sqrt(taps max(rows, cols)) ||W||,
    the last because the mean over all frequencies of the squared Frobenius norm of the symbol is ||W||_F^2. Four more
    units cover the product with c and this formula.
    """
    return 1 - UNIT_OF[dtype] * (math.sqrt(taps * max(rows, cols)) + 4)


def room_for(rows: int, cols: int, taps: int, dtype: torch.dtype) -> float:
    """The factor by which a float64 weight of norm at most 1 + 2^-40 has norm at most 1 when rounded to `dtype`."""
    return shrink(rows, cols, taps, dtype) * (1 - 2 * ROUNDINGS_8192)


def store(
    weight: Float[Tensor, "groups rows cols *taps"], dtype: torch.dtype
) -> Float[Tensor, "groups rows cols *taps"]:
    """A float64 weight of norm at most 1 + 2^-40, in `dtype`, with norm at most 1."""
    rows, cols, *taps = weight.shape[1:]
    return (weight * room_for(rows, cols, math.prod(taps), dtype)).to(dtype)
