"""Factors that are never larger in few digits than they are in many."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.rounding.slacks import ROUNDINGS_8


def round_down(factors: Float64[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """Factors >= 0 in `dtype`, at most what they are, and what a few roundings in float64 made of them.

    Ones stay ones, and so do powers of two: only what is not representable becomes smaller.
    """
    near = factors.to(dtype)
    whole = factors == torch.exp2(factors.clamp(min=1e-300).log2().round())
    # Roots and quotients are off by a few units in the last place of float64.
    least = torch.where(whole, factors, factors * (1 - ROUNDINGS_8))
    return torch.where(near.to(torch.float64) > least, near * (1 - torch.finfo(dtype).eps), near)
