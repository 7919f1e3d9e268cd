"""Maps from logits to the simplex: how one noisy sample votes."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


class SimplexMap(ABC):
    """tau: logits to {p >= 0, sum p = r} with the mass r, along the last axis, and how much it can stretch (in l2).

    The constants are those of tau alone; `inf` where it has none. With logits of an L-Lipschitz network, F = tau(f) has
    L(F) <= joint L, L(F_k) <= coordinate L and L(F_y - F_k) <= pair L.
    """

    @property
    def mass(self) -> float:
        """The sum r of all outputs; each lies in [0, r]."""
        return 1.0

    @property
    @abstractmethod
    def joint(self) -> float:
        """The constant of the whole map, rounded up."""

    @property
    @abstractmethod
    def coordinate(self) -> float:
        """The constant of one output, rounded up."""

    @property
    @abstractmethod
    def pair(self) -> float:
        """The constant of the difference of two outputs, rounded up."""

    @abstractmethod
    def __call__(self, logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        """The votes, in float32 at least."""


@final
@dataclass(frozen=True)
class Hardmax(SimplexMap):
    """One vote for the largest logit. It has no Lipschitz constant; its means are shares of a binomial law."""

    @property
    def joint(self) -> float:
        return math.inf

    @property
    def coordinate(self) -> float:
        return math.inf

    @property
    def pair(self) -> float:
        return math.inf

    def __call__(self, logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
