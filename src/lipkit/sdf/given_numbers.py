"""What fields and their tools take as numbers: one real number, a whole number, a tensor of real numbers."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError


def as_number(given: object, name: str) -> float:
    """One real number, also as a tensor or an array of one entry; anything else is refused."""
    if isinstance(given, Tensor | np.ndarray) and math.prod(given.shape) == 1:
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, Real):
        raise ArgumentError(f"{name} is one real number, got {_said(given)}.")
    return float(given)


def as_whole(given: object, name: str) -> int:
    """A whole number; 2.5, 2.0 and True are none."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise ArgumentError(f"{name} is a whole number, got {name}={_said(given)}.")
    return int(given)


def as_reals(given: Any, name: str) -> Float64[Tensor, "..."]:
    """A tensor, an array or a list of real numbers as a tensor in float64, without gradient; a copy."""
    found = as_plain_tensor(given, name, torch.float64)
    if found.is_complex():
        raise ArgumentError(f"{name} has real entries, got {found.dtype}; give the real part alone.")
    return found.to(torch.float64)


def as_plain_tensor(given: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor, an array or a list of numbers as a tensor without gradient; a copy. `dtype` is for lists."""
    # Torch takes no arrays that run backwards.
    whole = np.ascontiguousarray(given) if isinstance(given, np.ndarray) else given
    known = isinstance(given, Tensor | np.ndarray)
    try:
        return torch.as_tensor(whole, dtype=None if known else dtype).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{name} is a tensor or an array of numbers, got {_said(given)} ({error}).") from error


def _said(given: object) -> str:
    if isinstance(given, Tensor | np.ndarray):
        return f"an object of shape {tuple(given.shape)}"
    return repr(given)[:80]
