"""Unions and intersections with rounded seams that keep the constant."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_32
from lipkit.sdf._base import Field
from lipkit.sdf.combined._base import Combined, largest
from lipkit.sdf.given_numbers import as_number


class Blend(ABC):
    """How much a smooth maximum of width 1 exceeds the maximum: g(t) >= 0 of the gap t = |a - b|.

    With -1/2 <= g' <= 0 the derivatives of max(a, b) + g(|a - b|) in a and b are >= 0 and sum to 1, so the larger
    constant of the two survives.
    """

    @property
    @abstractmethod
    def largest(self) -> float:
        """g(0), the largest excess."""

    @abstractmethod
    def __call__(self, gap: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        """g of gaps >= 0."""


@final
@dataclass(frozen=True)
class QuadraticBlend(Blend):
    """g(t) = (1 - t)+^2 / 4: nothing changes where the two differ by the width or more. Reference: Quilez 2013."""

    @property
    def largest(self) -> float:
        return 1 / 4

    def __call__(self, gap: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        return (1 - gap).clamp(min=0).square() / 4


@final
@dataclass(frozen=True)
class CubicBlend(Blend):
    """g(t) = (1 - t)+^3 / 6: nothing changes beyond the width, and curvature is continuous. Reference: Quilez 2013."""

    @property
    def largest(self) -> float:
        return 1 / 6

    def __call__(self, gap: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        return (1 - gap).clamp(min=0) ** 3 / 6


@final
@dataclass(frozen=True)
class RootBlend(Blend):
    """g(t) = ((t^2 + 1)^(1/2) - t) / 2: analytic, a hyperbola along the seam. Reference: Quilez 2013."""

    @property
    def largest(self) -> float:
        return 1 / 2

    def __call__(self, gap: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        # The difference would cancel for large gaps.
        return 1 / (2 * ((gap.square() + 1).sqrt() + gap))


@final
@dataclass(frozen=True)
class ExponentialBlend(Blend):
    """g(t) = log(1 + exp(-t)): the log-sum-exp of the two, analytic. Reference: Quilez 2013."""

    @property
    def largest(self) -> float:
        return math.log(2)

    def __call__(self, gap: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        return (-gap).exp().log1p()


class _Smooth(Combined):
    """Two fields, blended."""

    def __init__(self, a: Field, b: Field, width: float, blend: Blend) -> None:
        super().__init__(a, b)
        self.width: float = as_number(width, "width")
        if not 0 < self.width < math.inf:
            raise ArgumentError(
                f"A seam has a finite width > 0, got {width}; without a seam use Union or Intersection."
            )
        self.blend: Blend = blend

    def _bound(self) -> Bound:
        return largest(self.operands)

    def _maximum(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.maximum(a, b) + self.width * self.blend((a - b).abs() / self.width)

    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        del points
        # The weights of the two are >= 0 and sum to 1. The gap is rounded relative to itself, g has slope at most 1/2.
        return errors.amax(0) + ROUNDINGS_32 * (values.abs().sum(0) + self.width)


@final
class SmoothUnion(_Smooth):
    """A union with a rounded seam: f(x) = max(a, b) + w g(|a - b| / w).

    Guarantee: the larger constant (UPPER). Adds at most w g(0), which is w/4 for the default: the solid grows.
    Cost: that of the parts.

    Args:
        a: One field.
        b: Another.
        width: Where the two differ by less, the seam is rounded (for the blends that end).
        blend: The shape of the seam.
    """

    def __init__(self, a: Field, b: Field, width: float, blend: Blend = QuadraticBlend()) -> None:  # noqa: B008 - immutable
        super().__init__(a, b, width, blend)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return self._maximum(values[0], values[1])


@final
class SmoothIntersection(_Smooth):
    """An intersection with a rounded edge: f(x) = min(a, b) - w g(|a - b| / w).

    Guarantee: the larger constant (UPPER). Takes away at most w g(0), which is w/4 for the default: the solid shrinks.
    Cost: that of the parts.

    Args:
        a: One field.
        b: Another.
        width: Where the two differ by less, the edge is rounded (for the blends that end).
        blend: The shape of the edge.
    """

    def __init__(self, a: Field, b: Field, width: float, blend: Blend = QuadraticBlend()) -> None:  # noqa: B008 - immutable
        super().__init__(a, b, width, blend)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return -self._maximum(-values[0], -values[1])
