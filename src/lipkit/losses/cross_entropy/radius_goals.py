"""The worth of a certified radius: decreasing functions for `CRM`."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lipkit.errors import ArgumentError


@dataclass(frozen=True)
class RadiusGoal(ABC):
    """A decreasing function g of a radius; `CRM` adds it to the loss of samples that are classified correctly.

    Args:
        target: The radius r0 that is worth striving for, in the norm of the constants.
    """

    target: float

    def __post_init__(self) -> None:
        if not 0.0 < self.target < math.inf:
            raise ArgumentError(f"A target radius is a finite number > 0, got {self.target}.")

    @abstractmethod
    def __call__(self, radius: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """g(r), entry by entry, finite for finite r."""

    def enough(self, radius: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Which samples have enough, by the radius itself and not its smooth form: nothing is added for them."""
        return torch.zeros_like(radius, dtype=torch.bool)


@final
@dataclass(frozen=True)
class Truncated(RadiusGoal):
    """g(r) = -min(r, r0): every bit of radius is worth the same until r0, nothing beyond."""

    def __call__(self, radius: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return -radius.clamp(max=self.target)


@final
@dataclass(frozen=True)
class RadiusUpTo(RadiusGoal):
    """g(r) = -r, for samples whose radius is below r0, and nothing for others.

    It differs from `Truncated` where the smooth radius R_t is far below R: by up to log(K - 1) / t, 0.44 for ten
    classes at t = 5. There -min(R_t, r0) with a target of 0.2 still pulls at samples that have three times as much.
    """

    def __call__(self, radius: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return -radius

    def enough(self, radius: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return radius >= self.target


@final
@dataclass(frozen=True)
class DecayingRadius(RadiusGoal):
    """g(r) = exp(-r / r0): small radii are worth most, in units of r0."""

    def __call__(self, radius: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return (-radius / self.target).exp()
