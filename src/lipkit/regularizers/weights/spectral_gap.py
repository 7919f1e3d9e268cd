"""Differences between singular values of layers."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Dense, LinearOperator, symbol
from lipkit.regularizers.linear_layers import LinearLayer, sum_over_layers
from lipkit.rounding.slacks import ULP


class GapPair(ABC):
    """The two singular values that are compared; abstract."""

    @abstractmethod
    def gap(self, values: Float64[Tensor, " rank"]) -> Float64[Tensor, ""]:
        """The difference, from the nonzero singular values in falling order."""


@final
@dataclass(frozen=True)
class GapOfExtremes(GapPair):
    """The largest and the smallest nonzero one: sigma_1 - sigma_r."""

    def gap(self, values: Float64[Tensor, " rank"]) -> Float64[Tensor, ""]:
        return values[0] - values[-1]


@final
@dataclass(frozen=True)
class GapBetween(GapPair):
    """The i-th and the j-th largest, counted from 1: |sigma_i - sigma_j|; `GapBetween(1, 2)` is the principal gap.

    Args:
        first: Place of the larger value, counted from 1.
        second: Place of the smaller value.
    """

    first: int = 1
    second: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.first < self.second:
            raise ArgumentError(f"GapBetween needs 1 <= first < second, got {self.first} and {self.second}.")

    def gap(self, values: Float64[Tensor, " rank"]) -> Float64[Tensor, ""]:
        if self.second > len(values):
            raise ArgumentError(f"{self} needs {self.second} nonzero singular values, got {len(values)}.")
        return values[self.first - 1] - values[self.second - 1]


class GapGoal(enum.Enum):
    """Whether gaps are to become small or large; the value is the sign of the penalty."""

    CLOSE = 1.0
    OPEN = -1.0


@final
@dataclass(frozen=True)
class SpectralGap:
    """sum over layers of |sigma_i - sigma_j|, by default sigma_max - sigma_min over the nonzero singular values.

    Closing the extremes makes weights multiples of semi-orthogonal ones. Closing the principal gap amplifies the
    noise of sigma_1 (its second derivative is of size 1/(sigma_1 - sigma_2)); `goal=GapGoal.OPEN` widens gaps instead,
    and needs something else that keeps norms down. Singular values below max(rows, cols) 2^-52 sigma_1 count as zero.
    A convolution has the singular values of its symbol on the torus that carries it: exactly its own under circular
    padding, nearly for other padding on images much larger than the kernel.

    Guarantee: none proven; `GapOfExtremes` gives zero if and only if in each layer all nonzero singular values are
    equal. Gradient: u_i v_i' - u_j v_j', a subgradient at ties. Cost: an SVD a layer, for convolutions one for each
    frequency.
    Reference: Luo 2025, section 7.2.

    Args:
        pair: The two singular values that are compared.
        goal: Whether the gap is made smaller or larger.
    """

    pair: GapPair = GapOfExtremes()
    goal: GapGoal = GapGoal.CLOSE

    def __call__(self, layers: Sequence[LinearLayer]) -> Float64[Tensor, ""]:
        """The penalty at the current weights."""
        return self.goal.value * sum_over_layers(self, layers, lambda op: self.pair.gap(singular_values(op)))


def singular_values(op: LinearOperator) -> Float64[Tensor, " rank"]:
    """The nonzero singular values of a matrix, or of a convolution on its torus, in falling order, differentiable.

    A convolution lists each pair of conjugate frequencies once. Cost: a batch of decompositions in float64.
    """
    if isinstance(op, Dense):
        blocks = op.weight.to(torch.promote_types(op.weight.dtype, torch.float64))
    else:
        found = symbol(op.to(torch.float64))
        blocks = found.at(found.frequencies(found.torus), found.torus)
    values = torch.linalg.svdvals(blocks).flatten().sort(descending=True).values
    kept = values > max(blocks.shape[-2:]) * ULP * values.detach()[0]
    # A zero matrix keeps its first value, so that there is one.
    kept[0] = True
    return values[kept]
