"""The subject of a statement: its norms, its scope, its network, the region it holds on; and the reach of a value."""

import enum
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.rounding.float64 import round_up
from lipkit.rounding.slacks import ROUNDINGS_8, ULP


class Scope(enum.Enum):
    """Whether a bound is one number, or one for each class, pair of classes or sample."""

    WHOLE = ("the whole map", 0)
    CLASS = ("each class", 1)
    PAIR = ("each pair of classes", 2)
    SAMPLE = ("each sample", 1)

    @property
    def axes(self) -> int:
        """Number of axes of the value."""
        return self.value[1]

    def __str__(self) -> str:
        return self.value[0]


class Metric(NamedTuple):
    """The norms a constant is measured in: ||f(x) - f(y)||_p_out <= K ||x - y||_p_in."""

    p_in: float
    p_out: float

    def __str__(self) -> str:
        return f"l{self.p_in:g}->l{self.p_out:g}"


L2 = Metric(2.0, 2.0)


class Fingerprint(ABC):
    """The network that a bound is of: the shape of one input, and a hash of what the network computes."""

    @property
    @abstractmethod
    def source(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    @abstractmethod
    def network(self) -> str:
        """The hash. Cost: the first time it may be computed."""


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


@final
@dataclass(frozen=True, eq=False)
class Reach:
    """A set that contains every value v of one tensor: low <= v <= high entrywise, and ||v - center||_2 <= radius.

    Both statements hold; either may be the tighter one. All tensors are float64 and without batch axis; the ends are
    rounded outward by whoever made them.
    """

    low: Float64[Tensor, "..."]
    high: Float64[Tensor, "..."]
    center: Float64[Tensor, "..."]
    radius: Float64[Tensor, ""]

    def __post_init__(self) -> None:
        if not (self.low.shape == self.high.shape == self.center.shape):
            raise ShapeError(
                f"A reach needs one shape, got {tuple(self.low.shape)}, {tuple(self.high.shape)} "
                f"and {tuple(self.center.shape)}."
            )


def center_in_box(reach: Reach) -> Float64[Tensor, "..."]:
    """The center moved into the box: no point of the reach gets farther from it, for the box is convex."""
    return torch.minimum(torch.maximum(reach.center, reach.low), reach.high)


def tighten(reach: Reach) -> Reach:
    """The same reach with its two statements used together: the box cut to the ball, the center in the box."""
    slack = ULP * (reach.center.abs() + reach.radius)
    # An entry of -inf is a masked one: the ball says nothing new of it.
    finite = torch.isfinite(reach.center)
    low = torch.where(finite, torch.maximum(reach.low, reach.center - reach.radius - slack), reach.low)
    high = torch.where(finite, torch.minimum(reach.high, reach.center + reach.radius + slack), reach.high)
    return Reach(low, high, torch.minimum(torch.maximum(reach.center, low), high), reach.radius)


Domain = tuple[Float64[Tensor, "..."], Float64[Tensor, "..."], Float64[Tensor, "..."], Float64[Tensor, ""]]


def domain_of(reach: Reach) -> Domain:
    """A combined reach as the tuple of its tensors, which a node may keep as a field."""
    both = tighten(reach)
    return both.low, both.high, both.center, both.radius


def reach_of(
    low: Float64[Tensor, "..."],
    high: Float64[Tensor, "..."],
    center: Float64[Tensor, "..."],
    radius: Float64[Tensor, ""],
) -> Reach:
    """The reach of these statements, with its center in the box and its radius no larger than the box allows."""
    center = torch.minimum(torch.maximum(center, low), high)
    farthest = torch.maximum(high - center, center - low)
    spread = round_up(torch.linalg.vector_norm(farthest), farthest.numel() + 3)
    # An unbounded statement may be infinite times zero; it says nothing, and the other one stands.
    radius = torch.where(torch.isnan(radius), torch.inf, radius) * (1 + ROUNDINGS_8)
    return Reach(low, high, center, torch.minimum(radius, torch.where(torch.isnan(spread), torch.inf, spread)))
