"""How far a value of a field proves that there is no zero."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.certify.radii.radius import quotient
from lipkit.rounding.slacks import ROUNDINGS_8


def free_radius(size: Float64[Tensor, " n"], error: Float64[Tensor, " n"], constant: float) -> Float64[Tensor, " n"]:
    """A lower bound of (size - error) / K, and 0 where that is negative, for sizes that carry one rounding.

    A function with constant K >= 0 whose value is `size`, to within `error`, has no zero nearer than this. For K = 0
    that is infinity, or 0 where nothing is known.
    """
    sure = (size.clamp(min=0.0) * (1 - ROUNDINGS_8) - error).clamp(min=0.0)
    if constant == 0:
        return torch.where(sure > 0, math.inf, sure)
    return quotient(sure, torch.tensor(constant, dtype=sure.dtype, device=sure.device))
