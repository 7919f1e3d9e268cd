"""Softmax."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import DenseStack, Diagonal, Reshape, Shape, product
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import exp_of, log_up, round_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes._variance import apart, distances
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.attention.probabilities import jacobian_change, jacobian_norm, probabilities

# Entries up to which the Jacobians of all rows are written out.
_WRITTEN_OUT = 2**24


@final
@dataclass(frozen=True, eq=False)
class Softmax(Node):
    """y_i = exp z_i / sum_j exp z_j along the last axis.

    The Jacobian diag(p) - p p' is symmetric with row sums 2 p_i (1 - p_i) <= 1/2, so Lip <= 1/2 in every l_p; attained
    (for n > 2 in the limit) where two entries have probability 1/2. One entry alone is constant. On a box the
    probabilities have ranges, and `jacobian_norm` bounds the Jacobian over them. `domain` is that box. Entries that are
    `hidden` have probability 0, whatever their score is; every row has one that is not. `near` is a point of the box
    and how far each row can lie from it; split there by `jacobian_change`.
    """

    size: Shape
    domain: Interval | None = None
    hidden: Bool[Tensor, "..."] | None = None
    near: tuple[Float64[Tensor, "..."], Float64[Tensor, "..."]] | None = None

    def __post_init__(self) -> None:
        if not (self.size and self.size[-1]):
            raise ArgumentError(f"A softmax needs an axis with entries, got {self.size}.")
        if self.hidden is not None and (tuple(self.hidden.shape) != self.size or bool(self.hidden.all(-1).any())):
            raise ArgumentError(
                f"The hidden entries of a softmax of {self.size} need that shape, and one entry in each row to be seen."
            )

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return self.size

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return self._seen(z, -torch.inf).softmax(-1)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        if self.size[-1] == 1:
            return torch.tensor(-torch.inf, dtype=torch.float64)
        whole = torch.tensor(0.5, dtype=torch.float64)
        if self.domain is None:
            return log_up(whole)
        return log_up(jacobian_norm(p, *self._range(*self.domain)).max().clamp(max=0.5))

    def within(self, reach: Reach) -> "Softmax":
        reach = tighten(reach)
        center = self._seen(reach.center, 0.0)
        moved = distances(self._seen(reach.low, 0.0), self._seen(reach.high, 0.0), center, reach.radius)
        return replace(self, domain=(reach.low, reach.high), near=(center, moved[..., 0]))

    def closer(self, center: Float64[Tensor, "..."], distance: Float64[Tensor, "... 1"]) -> "Softmax":
        """The same on a region where each row also lies within a distance of that of another point."""
        assert self.near is not None, "known on a region"
        z, moved = self.near
        return replace(self, near=(z, torch.minimum(moved, apart(self._seen(center, 0.0), z, distance)[..., 0])))

    def split(self, p: float) -> Split:
        n = self.size[-1]
        if p != 2 or self.domain is None or self.near is None or math.prod(self.size) * n > _WRITTEN_OUT:
            return super().split(p)
        z, distance = self.near
        at = self(z[None])[0]
        # The probabilities at the point are rounded: their own range says by how much; and so is the matrix of them.
        low, high = self._range(z, z)
        off = round_up(torch.linalg.vector_norm(torch.maximum(high - at, at - low).clamp(min=0.0), dim=-1), n + 2)
        rest = jacobian_change(*self._range(*self.domain), distance) + round_up(4 * off, 1) + ROUNDINGS_8
        # A row that moves too far has no linear part.
        whole = exp_of(self.log_constant(p), 1.0)
        near = rest < whole
        rest = torch.where(near, rest, whole)
        rows = torch.where(near[..., None], at, 0.0).reshape(-1, n)
        stack = DenseStack(torch.diag_embed(rows) - rows[:, :, None] * rows[:, None, :])
        center = product(Reshape(stack.out_shape, self.size), product(stack, Reshape(self.size, stack.in_shape)))
        return Split(center, Diagonal(rest[..., None], self.size))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        low, high = self._range(reach.low, reach.high)
        center = self(reach.center[None])[0]
        constant = self.within(reach).log_constant(2.0).exp()
        # The shift, the exponential, the sum and the quotient: relative to the probabilities.
        error = ROUNDINGS_8 * (self.size[-1] + 8) * torch.linalg.vector_norm(center)
        return reach_of(low, high, center, constant * reach.radius + error)

    def _seen(self, z: Tensor, otherwise: float) -> Tensor:
        return z if self.hidden is None else z.masked_fill(self.hidden.to(z.device), otherwise)

    def _range(self, low: Tensor, high: Tensor) -> Interval:
        return probabilities(self._seen(low, -torch.inf), self._seen(high, -torch.inf))

    def __str__(self) -> str:
        return "softmax"
