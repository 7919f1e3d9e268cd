"""Products of numbers that may be infinite."""

import torch
from jaxtyping import Float64
from torch import Tensor


def times(a: Float64[Tensor, "..."], b: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """a b, with 0 inf = 0: a factor that is 0 stays so however large the other is."""
    return torch.where((a == 0) | (b == 0), torch.zeros((), dtype=a.dtype, device=a.device), a * b)
