"""Where in input space a statement holds."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError


class Region:
    """A set of inputs; abstract. Two regions are the same if they compare equal."""


@final
@dataclass(frozen=True)
class Everywhere(Region):
    """The whole input space."""

    def __str__(self) -> str:
        return "everywhere"


@final
@dataclass(frozen=True, eq=False)
class Ball(Region):
    """{x : ||x - center||_p <= radius}, with p in [1, inf]."""

    center: Float[Tensor, "..."]
    radius: float
    p: float = 2.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius >= 0):
            raise ArgumentError(f"Ball needs a finite radius >= 0, got {self.radius}.")
        if not self.p >= 1:
            raise ArgumentError(f"Ball needs a norm p in [1, inf], got p={self.p}.")
        if not bool(torch.isfinite(self.center).all()):
            raise ArgumentError("Ball needs a finite center; this one has NaN or infinite entries.")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Ball)
            and self.radius == other.radius
            and self.p == other.p
            and _same(self.center, other.center)
        )

    def __hash__(self) -> int:
        return hash((Ball, self.radius, self.p, self.center.shape))

    def __str__(self) -> str:
        return f"l{self.p:g} ball of radius {self.radius:g}"


@final
@dataclass(frozen=True, eq=False)
class Box(Region):
    """{x : low <= x <= high}, entry by entry."""

    low: Float[Tensor, "..."]
    high: Float[Tensor, "..."]

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape:
            raise ShapeError(
                f"Box needs low and high of one shape, got {tuple(self.low.shape)} and {tuple(self.high.shape)}."
            )
        if not bool((self.low <= self.high).all()):
            raise ArgumentError("Box needs low <= high in every entry; swap them or remove NaN.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and _same(self.low, other.low) and _same(self.high, other.high)

    def __hash__(self) -> int:
        return hash((Box, self.low.shape))

    def __str__(self) -> str:
        return f"box in {tuple(self.low.shape)}"


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.device == b.device and bool((a == b).all())
