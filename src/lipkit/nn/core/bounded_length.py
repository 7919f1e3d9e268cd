"""Vectors made shorter than a given length, by a map of constant 1."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError

# exp of these is a normal number of every type.
_LIMIT = 20.0


def bound_length(
    x: Float[Tensor, "..."], length: Float[Tensor, "..."], dim: tuple[int, ...] = (-1,)
) -> Float[Tensor, "..."]:
    """x / sqrt(1 + |x|^2 / length^2) with the norm over the axes `dim`: near x if x is short, never longer than
    `length`.

    With r = sqrt(1 + |x|^2 / length^2) the Jacobian is (I - x x' / (length r)^2) / r, between 0 and I.
    Guarantee: constant 1 for every length > 0, attained at zero. Squares do not overflow.
    """
    # Whatever this number is, the result is the same; so it needs no gradient. Nothing is divided by less than itself.
    size = torch.maximum(x.detach().abs().amax(dim, keepdim=True), length.detach())
    unit = x / size
    return unit * ((length / size).square() + unit.square().sum(dim, keepdim=True)).rsqrt() * length


def as_logarithm(value: float, name: str) -> float:
    """The logarithm of a positive number that will be learnt; others are refused."""
    if not 0 < value < math.inf:
        raise ArgumentError(f"{name} must be a positive number, got {value}.")
    return math.log(value)


def positive_number(logarithm: Tensor, like: Tensor) -> Tensor:
    """The positive number behind a learnt logarithm, in the type of `like`."""
    return logarithm.clamp(-_LIMIT, _LIMIT).exp().to(like.dtype)


def wide(x: Tensor) -> Tensor:
    """x in float32 at least: bfloat16 and float16 have too few digits for sums of squares and softmax."""
    # A conversion that changes nothing would stay in exports, as another name of x that others use too.
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
