"""Softmax."""

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import log_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._base import Node
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.attention.probabilities import jacobian_norm, probabilities


@final
@dataclass(frozen=True, eq=False)
class Softmax(Node):
    """y_i = exp z_i / sum_j exp z_j along the last axis.

    The Jacobian diag(p) - p p' is symmetric with row sums 2 p_i (1 - p_i) <= 1/2, so Lip <= 1/2 in every l_p; attained
    (for n > 2 in the limit) where two entries have probability 1/2. One entry alone is constant. On a box the
    probabilities have ranges, and `jacobian_norm` bounds the Jacobian over them. `domain` is that box. Entries that are
    `hidden` have probability 0, whatever their score is; every row has one that is not.
    """

    size: Shape
    domain: Interval | None = None
    hidden: Bool[Tensor, "..."] | None = None

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
        return replace(self, domain=(reach.low, reach.high))

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
