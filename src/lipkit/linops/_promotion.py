"""One dtype for a weight and the vector it meets."""

import torch
from torch import Tensor


def promoted(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider of their dtypes: a real weight acts on complex vectors, and precision is never lost."""
    dtype = torch.promote_types(weight.dtype, x.dtype)
    return weight.to(dtype), x.to(dtype)
