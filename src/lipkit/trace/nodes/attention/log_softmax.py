"""The logarithm of a softmax, and of the sum of exponentials."""

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import log_up, round_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._base import Node
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.attention.probabilities import log_probabilities, probabilities


@final
@dataclass(frozen=True, eq=False)
class LogSoftmax(Node):
    """y = z - log sum_j exp z_j along the last axis, of length n >= 2.

    The Jacobian I - 1 p' is the projection along 1 onto the complement of p. Its norms are
        sqrt(n) |p|_2 in l2 (an oblique projection),   1 + (n - 2) max_i p_i in l1,   2 (1 - min_i p_i) in linf,
    hence sqrt(n), n - 1 and 2 on the whole space (in the limit p = e_a), and less where a box bounds p:
    |p|_2^2 <= min(max_i p_i, sum_i p_i^2 at the upper ends). Between l2 and its neighbours other l_p interpolate.
    Our derivation. `domain` is that box.
    """

    size: Shape
    domain: Interval | None = None

    def __post_init__(self) -> None:
        if not (self.size and self.size[-1]):
            raise ArgumentError(f"A softmax needs an axis with entries, got {self.size}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return self.size

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return z.log_softmax(-1)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        n = self.size[-1]
        if n == 1:
            return torch.tensor(-torch.inf, dtype=torch.float64)
        smallest, largest = torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
        if self.domain is not None:
            smallest, largest = probabilities(*self.domain)
        one = 1 + (n - 2) * largest.amax(-1)
        two = torch.sqrt(n * torch.minimum(largest.amax(-1), (largest**2).sum(-1)))
        infinity = 2 * (1 - smallest.amin(-1))
        bound = {1.0: one, 2.0: two, torch.inf: infinity}.get(p)
        if bound is None:
            # Riesz-Thorin between the two nearest; their larger one is safe.
            bound = torch.maximum(two, one if p < 2 else infinity)
        return log_up(round_up(bound.max(), n + 4))

    def within(self, reach: Reach) -> "LogSoftmax":
        reach = tighten(reach)
        return replace(self, domain=(reach.low, reach.high))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        low, high = log_probabilities(reach.low, reach.high)
        center = self(reach.center[None])[0]
        constant = self.within(reach).log_constant(2.0).exp()
        error = ROUNDINGS_8 * (self.size[-1] + 8) * torch.linalg.vector_norm(center.abs() + reach.center.abs() + 1)
        return reach_of(low, high, center, constant * reach.radius + error)

    def __str__(self) -> str:
        return "log softmax"


@final
@dataclass(frozen=True, eq=False)
class LogSumExp(Node):
    """y = log sum_j exp z_j along the last axis, which becomes 1.

    The gradient is p, a probability, so Lip = |p|_q with 1/p + 1/q = 1: exactly 1 in linf, and in the other norms 1 in
    the limit p = e_a; on a box |p|_2 <= sqrt(max_i p_i) and |p|_inf = max_i p_i. `domain` is that box.
    """

    size: Shape
    domain: Interval | None = None

    def __post_init__(self) -> None:
        if not (self.size and self.size[-1]):
            raise ArgumentError(f"A sum of exponentials needs an axis with entries, got {self.size}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return (*self.size[:-1], 1)

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return z.logsumexp(-1, keepdim=True)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        if self.domain is None or p == torch.inf:
            return torch.zeros((), dtype=torch.float64)
        # |p|_q^q <= max_i p_i^(q - 1), and (q - 1) / q = 1 / p.
        return log_up(probabilities(*self.domain)[1].max()) / p * (1 - ROUNDINGS_8)

    def within(self, reach: Reach) -> "LogSumExp":
        reach = tighten(reach)
        return replace(self, domain=(reach.low, reach.high))

    def reach(self, reach: Reach) -> Reach:
        count = self.size[-1] + 8
        reach = tighten(reach)
        low, high, center = (self(x[None])[0] for x in (reach.low, reach.high, reach.center))
        error = ROUNDINGS_8 * count * (1 + center.abs())
        low = torch.where(torch.isfinite(low), low - ROUNDINGS_8 * count * (1 + low.abs()), low)
        high = torch.where(torch.isfinite(high), high + ROUNDINGS_8 * count * (1 + high.abs()), high)
        constant = self.within(reach).log_constant(2.0).exp()
        return reach_of(low, high, center, constant * reach.radius + torch.linalg.vector_norm(error))

    def __str__(self) -> str:
        return "log of a sum of exponentials"
