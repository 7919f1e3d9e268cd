"""Noise laws, and how far the shares of classes can move when the input moves."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor


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
    rule: Float64[Tensor, "batch classes"]


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
    def shape(self, uniform: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """PLACEHOLDER: the engine decides how noise is drawn."""

    @abstractmethod
    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], constants: Constants | None
    ) -> PairRadii:
        """For each rival, how far the input may move while the label's share stays above the rival's.

        The largest over the rules, rival by rival; <= 0 where nothing is proven. Rises with `lower`, falls with
        `upper`. Guarantee: rounded down.
        """
