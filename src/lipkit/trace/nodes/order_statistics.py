"""Order statistics along an axis: sorting, maxima, minima, medians, the k largest."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import Reach, reach_of, tighten
from lipkit.trace.nodes._base import Node


@final
@dataclass(frozen=True, eq=False)
class OrderStatistics(Node):
    """Along the last axis, the entries at `ranks` of the sorted list: 0 is the smallest, -1 the largest.

    Where the order is strict the function moves entries without repeating any, so its Jacobian is a part of a
    permutation matrix: Lip = 1 in every l_p, exactly. Ranks are distinct; sorting is all of them.
    """

    size: Shape
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        length = self.size[-1] if self.size else 0
        places = {rank % length for rank in self.ranks if -length <= rank < length} if length else set()
        if len(places) != len(self.ranks) or not places:
            raise ArgumentError(f"Ranks must be distinct and lie in -{length}..{length - 1}, got {self.ranks}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return (*self.size[:-1], len(self.ranks))

    @property
    def roundings(self) -> float:
        return 0.0

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        # The extremes need no sorting.
        if self.ranks == (-1,):
            return z.amax(-1, keepdim=True)
        if self.ranks == (0,):
            return z.amin(-1, keepdim=True)
        ordered = z.sort(-1).values
        every = tuple(range(self.size[-1]))
        return ordered if self.ranks == every else ordered[..., list(self.ranks)]

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        return torch.zeros((), dtype=torch.float64)

    def within(self, reach: Reach) -> "OrderStatistics":
        return self

    def reach(self, reach: Reach) -> Reach:
        # Every order statistic rises with every entry.
        reach = tighten(reach)
        low, high, center = (self(x[None])[0] for x in (reach.low, reach.high, reach.center))
        return reach_of(low, high, center, reach.radius)

    def __str__(self) -> str:
        length = self.size[-1]
        known = {(-1,): "max", (0,): "min", tuple(range(length)): "sort"}
        return known.get(self.ranks, f"order statistics {self.ranks}")
