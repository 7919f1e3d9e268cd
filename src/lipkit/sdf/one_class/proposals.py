"""Where points that are no data are proposed, and the domain that they stay in."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError


class Proposal(ABC):
    """A distribution of points in a bounded domain that reaches everything at some distance from the rows; abstract.

    Points outside of the domain are no concern of the training; they count as anomalies by decree.
    """

    @abstractmethod
    def draw(self, rows: Float[Tensor, "n *shape"], count: int, source: torch.Generator) -> Float[Tensor, "m *shape"]:
        """Points of the shape, type and device of the rows, inside of the domain; `source` lives on that device."""

    @abstractmethod
    def box(self, rows: Float[Tensor, "n *shape"]) -> tuple[Tensor, Tensor]:
        """The lower and the upper ends of a box that holds the domain, one for each coordinate."""


@final
@dataclass(frozen=True)
class GaussianColumns(Proposal):
    """Independent Gaussian columns around the mean, in a box: for tables.

        z_j ~ N(mean_j, (share max_i |x_ij - mean_j|)^2), cut to mean_j +- reach std_j.

    Cost: one number for each coordinate. Reference: Béthune 2024, section 5.2 (the box has a side of 10 standard
    deviations), and the code of that work (a spread of half the largest deviation).

    Args:
        share: Standard deviation of a column as a share of its largest deviation from the mean.
        reach: Half the side of the box in standard deviations of the column.
    """

    share: float = 0.5
    reach: float = 5.0

    def __post_init__(self) -> None:
        check_positive("share", self.share)
        check_positive("reach", self.reach)

    def draw(self, rows: Float[Tensor, "n *shape"], count: int, source: torch.Generator) -> Float[Tensor, "m *shape"]:
        mean = rows.mean(0)
        spread = self.share * (rows - mean).abs().amax(0)
        noise = torch.randn(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device, generator=source)
        return (mean + spread * noise).clamp(*self.box(rows))

    def box(self, rows: Float[Tensor, "n *shape"]) -> tuple[Tensor, Tensor]:
        mean, half = rows.mean(0), self.reach * rows.std(0, correction=0)
        return mean - half, mean + half


@final
@dataclass(frozen=True)
class UniformBox(Proposal):
    """Uniform points of the box [low, high]^d: for images, whose pixels lie between two numbers.

    Cost: one number for each coordinate. Reference: Béthune 2024, definition 17 and section 5.2.
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ArgumentError(f"A box has finite ends low < high, got low={self.low}, high={self.high}.")

    def draw(self, rows: Float[Tensor, "n *shape"], count: int, source: torch.Generator) -> Float[Tensor, "m *shape"]:
        share = torch.rand(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device, generator=source)
        return (self.low + (self.high - self.low) * share).clamp(*self.box(rows))

    def box(self, rows: Float[Tensor, "n *shape"]) -> tuple[Tensor, Tensor]:
        return torch.full_like(rows[0], self.low), torch.full_like(rows[0], self.high)

    def margin(self, shape: Sequence[int], share: float) -> float:
        """A margin for `OneClass` as a share of the diagonal of the box: share (high - low) sqrt(n) for n coordinates.

        Twice the margin is the gap that HKR wants between the rows and all else, so it is of the order of distances.
        Guarantee: none, a rule of thumb: small margins are near the theory, large ones train stably. Reference: the
        code of Béthune 2024 has share sqrt((high - low) n), the same on [0, 1] (CIFAR-10, .2 %: .111); a length grows
        with the unit of pixels, so on [-1, 1] its share of 2 % (MNIST: .792) is 1.41 % here.
        """
        check_positive("share", share)
        return share * (self.high - self.low) * math.sqrt(math.prod(shape))


@final
@dataclass(frozen=True)
class UniformBall(Proposal):
    """Uniform points of a ball around the mean: radius u^(1/d) times a direction, u uniform in [0, 1].

    Cost: one number for each coordinate. Reference: classical; used for one-class learning by the code of Béthune 2024.
    """

    radius: float = 5.0

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    def draw(self, rows: Float[Tensor, "n *shape"], count: int, source: torch.Generator) -> Float[Tensor, "m *shape"]:
        noise = torch.randn(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device, generator=source).flatten(1)
        share = torch.rand(count, 1, dtype=rows.dtype, device=rows.device, generator=source) ** (1 / noise.shape[1])
        length = torch.linalg.vector_norm(noise, dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        shift = (noise / length * share * self.radius).view(count, *rows.shape[1:])
        return (rows.mean(0) + shift).clamp(*self.box(rows))

    def box(self, rows: Float[Tensor, "n *shape"]) -> tuple[Tensor, Tensor]:
        mean = rows.mean(0)
        return mean - self.radius, mean + self.radius


def check_positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise ArgumentError(f"{name} is a finite number > 0, got {value}.")
