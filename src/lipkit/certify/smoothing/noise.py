"""Noise laws, and how far the shares of classes can move when the input moves."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, final

from jaxtyping import Float, Float64, Int64
from torch import Tensor


class Source(Protocol):
    """Where random numbers come from: a stream that depends on a seed, an image and a block alone."""

    def normal(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        """Independent standard normal numbers, on the device and in the type of the inputs."""
        ...

    def uniform(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        """Independent numbers, uniform in the open interval (0, 1)."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Constants:
    """Lipschitz constants of the votes of each input, divided by their mass: one output, and a difference of two."""

    coordinate: Float64[Tensor, " batch"]
    pair: Float64[Tensor, " batch"]


@final
@dataclass(frozen=True, eq=False)
class PairRadii:
    """A radius for each rival, and which of the noise's `rules` proves it."""

    value: Float64[Tensor, "batch classes"]
    rule: Int64[Tensor, "batch classes"]


class Noise(ABC):
    """The law of the noise that is added to inputs; its radii are in l_`p`."""

    @property
    @abstractmethod
    def p(self) -> float:
        """The norm of the radii."""

    @property
    @abstractmethod
    def rules(self) -> tuple[str, ...]:
        """The names of the theorems that give radii."""

    @abstractmethod
    def draw(self, source: Source, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        """Noise of that shape from the numbers of `source`."""

    @abstractmethod
    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], constants: Constants | None
    ) -> PairRadii:
        """For each rival, how far the input may move while the label's share stays above the rival's.

        The largest over the rules, rival by rival; <= 0 where nothing is proven. Rises with `lower`, falls with
        `upper`. Guarantee: rounded down.
        """
