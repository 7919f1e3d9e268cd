"""Whether a number lies on one side of another: the answer of a comparison as a function, which jumps."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.pointwise import Activation


@final
@dataclass(frozen=True, eq=False)
class Indicator(Activation):
    """f(z) = 1 on one side of the knot and 0 on the other; `closed` says that the knot itself belongs to the former.

    It is the one activation that jumps. No captured network has it: formulas of it that are continuous become one
    activation (`rewrites.spelled_choices`), all others are refused. `rounded` is the knot in the precision that the
    model compares in; both are readings of the same program.
    """

    knot: float
    above: bool
    closed: bool
    rounded: float

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if self.above:
            return (z >= self.knot if self.closed else z > self.knot).to(z.dtype)
        return (z <= self.knot if self.closed else z < self.knot).to(z.dtype)

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        jump = torch.where(self(low) == self(high), 0.0, math.inf).to(low)
        zero = torch.zeros_like(low)
        return (zero, jump) if self.above else (-jump, zero)

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        first, last = self(low), self(high)
        return torch.minimum(first, last), torch.maximum(first, last)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        jump = torch.where(self(low) == self(high), 0.0, math.inf).to(low)
        return -jump, jump

    @property
    def kinks(self) -> tuple[float, ...]:
        return (self.knot,)

    def __str__(self) -> str:
        return f"{'>' if self.above else '<'}{'=' if self.closed else ''} {self.knot:g}"
