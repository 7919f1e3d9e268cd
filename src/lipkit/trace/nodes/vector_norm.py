"""Norms of vectors along an axis."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import round_down, round_up
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8
from lipkit.trace.nodes._base import Node


@final
@dataclass(frozen=True, eq=False)
class VectorNorm(Node):
    """y = |z|_q along the last axis, which becomes 1.

    By the triangle inequality | |z|_q - |z'|_q | <= |z - z'|_q <= d^max(0, 1/q - 1/p) |z - z'|_p, attained: exact.
    """

    size: Shape
    order: float

    def __post_init__(self) -> None:
        if not (self.size and self.size[-1] and self.order >= 1):
            raise ArgumentError(f"A norm needs an axis with entries and an order >= 1, got {self.size}, {self.order}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return (*self.size[:-1], 1)

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        # In units of a power of two near the largest entry: squares of tiny and huge numbers leave the range of floats.
        largest = z.detach().abs().amax(-1, keepdim=True)
        limit = 1000 if z.dtype is torch.float64 else 120
        unit = torch.exp2(torch.frexp(largest).exponent.clamp(-limit, limit).to(z.dtype))
        return torch.linalg.vector_norm(z / unit, self.order, dim=-1, keepdim=True) * unit

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        excess = max(0.0, 1 / self.order - 1 / p) * (1 + ROUNDINGS_8) * math.log(self.size[-1])
        return torch.tensor(excess * (1 + ROUNDINGS_8), dtype=torch.float64)

    def within(self, reach: Reach) -> "VectorNorm":
        return self

    def reach(self, reach: Reach) -> Reach:
        count = 4 * self.size[-1] + 8
        reach = tighten(reach)
        nearest = torch.maximum(reach.low, -reach.high).clamp(min=0.0)
        farthest = torch.maximum(reach.low.abs(), reach.high.abs())
        low, high = round_down(self(nearest[None])[0], count), round_up(self(farthest[None])[0], count)
        center = self(reach.center[None])[0]
        error = ROUNDINGS_4 * count * torch.linalg.vector_norm(center)
        return reach_of(low, high, center, self.log_constant(2.0).exp() * reach.radius * (1 + ROUNDINGS_8) + error)

    def __str__(self) -> str:
        return f"l{self.order:g} norm"
