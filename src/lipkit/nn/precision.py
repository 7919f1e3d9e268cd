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
    target = dtype_in_use(raw)
    if torch.is_autocast_enabled(raw.device.type):
        with torch.autocast(raw.device.type, enabled=False):
            return narrowed(fn(_wide(raw)), target)
    return narrowed(fn(_wide(raw)), target)


def dtype_in_use(raw: Tensor) -> torch.dtype:
    """The type a layer multiplies with: that of its numbers, or autocast's where it is on (float64 is left alone)."""
    device = raw.device.type
    if torch.is_autocast_enabled(device) and raw.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return raw.dtype


# Compilers cannot read these settings; they compile again when tf32 is switched.
@torch.compiler.assume_constant_result
def exact_products() -> bool:
    """Whether torch multiplies float32 matrices with all their digits: it may be told to use tf32 or bfloat16."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    return all(backend.fp32_precision in ("none", "ieee") for backend in backends)


def narrowed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight of norm at most one in `dtype`, smaller by a margin where the type has few digits."""
    margin = _MARGIN.get(dtype)
    return weight.to(dtype) if margin is None else (weight * margin).to(dtype)


def _wide(raw: Tensor) -> Tensor:
    return raw if raw.dtype == torch.float64 else raw.to(torch.float32)
