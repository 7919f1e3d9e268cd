"""What a certified radius is worth: decreasing functions for `CRM`."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError


class RadiusGoal(ABC):
    """A decreasing function g of a radius; `CRM` adds it to the loss of samples that are classified correctly."""

    @abstractmethod
    def __call__(self, radius: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """g(r), entry by entry, finite for finite r."""


@final
@dataclass(frozen=True)
class Truncated(RadiusGoal):
    """g(r) = -min(r, r0): every bit of radius is worth the same until r0, nothing beyond."""

    target: float

    def __post_init__(self) -> None:
        _check(self.target)

    def __call__(self, radius: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return -radius.clamp(max=self.target)


@final
@dataclass(frozen=True)
class Decaying(RadiusGoal):
    """g(r) = exp(-r / r0): small radii are worth most, in units of r0."""

    target: float

    def __post_init__(self) -> None:
        _check(self.target)

    def __call__(self, radius: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return (-radius / self.target).exp()


def _check(target: float) -> None:
    if not 0.0 < target < math.inf:
        raise ArgumentError(f"A target radius is a finite number > 0, got {target}.")
