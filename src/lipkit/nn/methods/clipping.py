"""Weights whose entries are clipped."""

import math
from dataclasses import dataclass
from typing import final

import torch

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Blocks, Promise, WeightMethod
from lipkit.nn.methods.rko import overlap
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_4


@final
@dataclass(frozen=True)
class Clip(WeightMethod):
    """Entries clipped to [-c, c], so that ||W|| <= overlap^(1/2) ||W||_F <= (overlap rows cols taps)^(1/2) c <= 1.

    `limit` is c; None takes the largest that proves norm one, and a larger one is refused. Norm 1 is reached only if
    all entries are c up to signs of rows and columns: a baseline. Clipped entries have no gradient, so it is meant for
    projection after a step rather than for training through it.

    Guarantee: norm at most 1 as stored, in every geometry. Reaches every such matrix, which is its own free matrix.
    Cost: one pass. Gradient: 1 inside, 0 outside.
    Reference: Arjovsky, Chintala and Bottou 2017.

    Args:
        limit: Largest absolute value of an entry; None for the largest that proves norm one.
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not (0 < self.limit < math.inf):
            raise ArgumentError(f"Clip.limit must be a positive number, got {self.limit}.")

    def __str__(self) -> str:
        return "clipped entries" if self.limit is None else f"entries clipped at {self.limit:g}"

    def promise(self, geometry: Geometry) -> Promise:
        most = _most(geometry)
        if self.limit is not None and self.limit > most:
            raise UnsupportedError(
                f"Clip(limit={self.limit:g}) does not keep the norm of weights of shape {geometry.shape} below one; "
                f"take at most {most:g}, or leave it out."
            )
        return Promise.CONTRACTION

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        limit = self._limit(geometry)
        return raw.clamp(-limit, limit)

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        """Whether no entry is larger than the limit, to 1e-6."""
        return bool(weight.detach().abs().max() <= self._limit(geometry) * (1 + 1e-6))

    def start(self, geometry: Geometry) -> Blocks:
        """Uniform within the limit."""
        limit = self._limit(geometry)
        return torch.empty(geometry.shape).uniform_(-limit, limit)

    def _limit(self, geometry: Geometry) -> float:
        return _most(geometry) if self.limit is None else self.limit


def _most(geometry: Geometry) -> float:
    # Smaller by more than the rounding of the limit to float32.
    return (1 - FLOAT32_ROUNDINGS_4) / math.sqrt(
        overlap(geometry) * geometry.rows * geometry.cols * math.prod(geometry.taps)
    )
