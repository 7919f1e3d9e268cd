"""Maps from logits to the simplex: how one noisy sample votes."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.losses._base import wide
from lipkit.losses.fenchel_young import SquaredNormRegularizer
from lipkit.rounding.slacks import ROUNDINGS_8


@dataclass(frozen=True)
class SimplexMap(ABC):
    """tau: logits to {p >= 0, sum p = r} with the mass r, along the last axis, and how much it can stretch (in l2).

    The constants are those of tau alone; `inf` where it has none. With logits of an L-Lipschitz network, F = tau(f) has
    L(F) <= joint L, L(F_k) <= coordinate L and L(F_y - F_k) <= pair L. `mass` is r, the sum of all outputs; each of
    them lies in [0, r]. It is 1 for most maps.
    """

    mass: float = field(default=1.0, init=False, repr=False)

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
    """One vote for the largest logit, the first one of several. It has no Lipschitz constant.

    Its votes have the largest variance of all maps: logits uniform in 1/2 -+ e have the variance e^2 / 3, their
    threshold at 1/2 has 1/4, however small e is. In return the means are shares of a binomial law.
    """

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
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(wide(logits).dtype)


@final
@dataclass(frozen=True)
class Softmax(SimplexMap):
    """tau(z)_k = exp(z_k / T) / sum_j exp(z_j / T). T -> 0 gives `Hardmax`.

    The Jacobian is J = (diag(p) - p p') / T. v' J v is the variance of v under p over T, at most (max v - min v)^2 / 4
    <= |v|^2 / 2: joint 1/(2T). Row k is p_k (e_k - p) / T, of length at most p_k (1 - p_k) sqrt(2) / T: coordinate
    sqrt(2)/(4T). |J (e_y - e_k)| <= sqrt(2) |J|: pair sqrt(2)/(2T). Two equal logits far above all others attain
    the three. Cost: one pass.

    Args:
        temperature: T; larger ones make votes flatter.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_size("temperature", self.temperature)

    @property
    def joint(self) -> float:
        return _quotient_up(0.5, self.temperature)

    @property
    def coordinate(self) -> float:
        return _quotient_up(math.sqrt(2) / 4, self.temperature)

    @property
    def pair(self) -> float:
        return _quotient_up(math.sqrt(2) / 2, self.temperature)

    def __call__(self, logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        return _below_largest(logits, self.temperature).softmax(-1)


@final
@dataclass(frozen=True)
class Sparsemax(SimplexMap):
    """The Euclidean projection of z / T on {p >= 0, sum p = r}: r sparsemax(z / (r T)). T -> 0 gives r `Hardmax`.

    A projection on a convex set shortens distances: joint and coordinate 1/T, pair sqrt(2)/T, attained (coordinate: as
    the number of classes grows) where all classes have votes. Small masses give sparse votes. The derivative on the
    support S is g_S - mean(g_S), over T. Cost: one sort. Reference: Martins, Astudillo 2016; Condat 2016.

    Args:
        mass: r, the sum of the votes of one sample.
        temperature: T; larger ones make votes flatter.
    """

    mass: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_size("mass", self.mass)
        _check_size("temperature", self.temperature)

    @property
    def joint(self) -> float:
        return _quotient_up(1.0, self.temperature)

    @property
    def coordinate(self) -> float:
        return _quotient_up(1.0, self.temperature)

    @property
    def pair(self) -> float:
        return _quotient_up(math.sqrt(2), self.temperature)

    def __call__(self, logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        return self.mass * SquaredNormRegularizer().predict(_below_largest(logits, self.temperature) / self.mass)


def _below_largest(logits: Tensor, temperature: float) -> Tensor:
    # The maps ignore a common shift. Without it large logits would overflow when they are divided.
    scores = wide(logits)
    return (scores - scores.detach().amax(-1, keepdim=True)) / temperature


def _quotient_up(constant: float, temperature: float) -> float:
    return constant / temperature * (1 + ROUNDINGS_8)


def _check_size(what: str, value: float) -> None:
    # Logits are divided by it in float32, and votes squared in float64: far beyond, zeros and infinities appear.
    if not 1e-30 <= value <= 1e30:
        raise ArgumentError(f"The {what} of a simplex map is a number from 1e-30 to 1e30, got {value}.")
