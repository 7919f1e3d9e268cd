"""Weights without negative entries, each entry a function of its free number."""

import enum
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional

from lipkit.nn.convex._perron import of_norm_one
from lipkit.nn.convex._signed import NonNegativeMethod
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Blocks

# The smallest weight whose free number the softplus still tells from zero, next to the largest of 1.
_SMALLEST = 1e-12
# Free numbers beyond this count as such: their squares would leave the range of float64.
_LARGEST = 2.0**500


class NonNegativeMap(enum.Enum):
    """A function from numbers to numbers >= 0, by which `NonNegative` makes entries."""

    # max(0, w): entries with negative free numbers get no gradient.
    RELU = "max(0, w)"
    # log(1 + exp(w)).
    SOFTPLUS = "log(1 + exp(w))"
    # |w|.
    ABSOLUTE = "|w|"
    # w^2.
    SQUARE = "w^2"
    # w^2/2 up to |w| = 1, and |w| - 1/2 beyond.
    HUBER = "w^2/2 or |w| - 1/2"

    def __str__(self) -> str:
        return self.value


@final
@dataclass(frozen=True)
class NonNegative(NonNegativeMethod):
    """g(W) / b with a function g >= 0 of every entry and b >= ||g(W)||: no negative entries, and norm at most one.

    Layers with such weights keep convexity: sums of convex functions with weights >= 0 are convex. b comes from the
    first singular vector (Perron), of the sum over taps for kernels, and is within 1e-3 of the norm for random numbers.

    Guarantee: entries >= 0 and norm at most 1 as stored, on inputs of every size, zero or circular padding, strides,
    dilation and groups. Cost: one pass, and 18 products with a vector. Gradient: exact; with `straight_through` the
    entry passes the gradient on as if g were the identity (a step in the geometry of g, for entries where g is flat).
    Limit: such matrices are near rank one at the start, and `Stochastic` is not; yet convex networks learned best from
    squares in our trial (docs/benchmarks.md).
    Reference: Amos et al. 2017; Béthune 2024, section 7.1; the bound of the norm is ours.

    Args:
        map: The function of every entry.
        straight_through: Whether gradients pass g unchanged.
    """

    map: NonNegativeMap = NonNegativeMap.SQUARE
    straight_through: bool = False

    def __str__(self) -> str:
        return f"entries {self.map}, over their norm" + (", straight through" if self.straight_through else "")

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        wide = raw.to(torch.float64)
        entries = _apply(self.map, wide)
        if self.straight_through:
            # The difference is zero: it only carries the gradient.
            entries = entries.detach() + (wide - wide.detach())
        return of_norm_one(entries, geometry, raw.dtype)

    def start(self, geometry: Geometry) -> Blocks:
        """Uniform free numbers (Glorot) through g; where `inverse` keeps signs, with the signs they had."""
        taps = math.prod(geometry.taps)
        limit = math.sqrt(6 / ((geometry.rows + geometry.cols) * taps))
        raw = (2 * torch.rand(geometry.shape) - 1) * limit
        match self.map:
            case NonNegativeMap.SOFTPLUS:
                return self(raw, geometry)
            case NonNegativeMap.RELU:
                return raw
            case NonNegativeMap.ABSOLUTE | NonNegativeMap.SQUARE | NonNegativeMap.HUBER:
                return raw.sign() * _apply(self.map, raw.to(torch.float64)).to(raw.dtype)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Blocks:
        """g^(-1) of the entries, with their signs where g is even; an entry below zero has the weight of its size."""
        match self.map:
            case NonNegativeMap.RELU | NonNegativeMap.ABSOLUTE:
                return weight
            case NonNegativeMap.SOFTPLUS:
                positive = weight.clamp(min=_SMALLEST)
                return positive + torch.log(-torch.expm1(-positive))
            case NonNegativeMap.SQUARE:
                return weight.sign() * weight.abs().sqrt()
            case NonNegativeMap.HUBER:
                size = weight.abs()
                return weight.sign() * torch.where(size <= 0.5, (2 * size).sqrt(), size + 0.5)


def _apply(map: NonNegativeMap, wide: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    match map:
        case NonNegativeMap.RELU:
            return wide.relu()
        case NonNegativeMap.SOFTPLUS:
            # The threshold is where the difference to w is below rounding.
            return functional.softplus(wide, threshold=40.0)
        case NonNegativeMap.ABSOLUTE:
            return wide.abs()
        case NonNegativeMap.SQUARE:
            return wide.clamp(-_LARGEST, _LARGEST).square()
        case NonNegativeMap.HUBER:
            size = wide.abs()
            # The square is cut where it is not used: its gradient would overflow.
            return torch.where(size <= 1, size.clamp(max=1.0).square() / 2, size - 0.5)
