"""Lengths of differences in float64, and how far they may be off."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.float64 import gamma

# Squares below the smallest normal number, 2^-1022, may become zero; then a length in R^d lacks up to sqrt(d) 2^-511.
_UNDERFLOW = 2.0**-510


def lengths(differences: Float64[Tensor, "*n d"]) -> Float64[Tensor, "*n"]:
    """Euclidean lengths; the gradient at zero is zero."""
    return torch.linalg.vector_norm(differences, dim=-1)


def length_error(dim: int, length: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """How far a length of this size may be off, if it was computed from differences of float64 coordinates."""
    # A difference is rounded relative to itself, a sum of d squares carries d roundings, and the root halves them.
    return gamma(dim + 8) * length + underflow(dim)


def underflow(dim: int) -> float:
    """The absolute error of a length in R^d whose squares leave the range of float64 at its lower end."""
    return math.sqrt(dim) * _UNDERFLOW
