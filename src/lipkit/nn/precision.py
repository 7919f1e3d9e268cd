"""In which numbers weights are computed, and in which they are used."""

from collections.abc import Callable

import torch
from torch import Tensor

# What a weight is multiplied by before it is rounded to so few digits; larger than any excess seen after rounding an
# isometry (2.3e-3 in bfloat16, 2.9e-4 in float16, at every width). `condense` proves the rounded weights.
_MARGIN = {torch.bfloat16: 1 - 2.0**-8, torch.float16: 1 - 2.0**-10}


def in_full_precision(fn: Callable[[Tensor], Tensor], raw: Tensor) -> Tensor:
    """fn(raw), computed in float32 at least whatever autocast says, in the type the layer will multiply with.

    That is the type of `raw`, or autocast's where it is on. Room is made for rounding to fewer digits than float32.
    """
    device = raw.device.type
    if torch.is_autocast_enabled(device) and raw.dtype != torch.float64:
        target = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return narrowed(fn(_wide(raw)), target)
    return narrowed(fn(_wide(raw)), raw.dtype)


def narrowed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight of norm at most one in `dtype`, smaller by a margin where the type has few digits."""
    margin = _MARGIN.get(dtype)
    return weight.to(dtype) if margin is None else (weight * margin).to(dtype)


def _wide(raw: Tensor) -> Tensor:
    return raw if raw.dtype == torch.float64 else raw.to(torch.float32)
