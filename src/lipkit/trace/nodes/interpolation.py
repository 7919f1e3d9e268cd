"""A weighted mean of two values whose weight depends on the input: gates of recurrent cells, lerp, highway layers."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.linops import BlockRow, Diagonal, Shape
from lipkit.regions import Domain, Reach, domain_of, reach_of, tighten
from lipkit.rounding.float64 import exp_of, log_up, round_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes._extended_products import times

Parts = tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]


@final
@dataclass(frozen=True, eq=False)
class Interpolation(Node):
    """y = (1 - g) a + g b, entry by entry, for z = (gauge g, a, b) laid out one after the other in one vector.

    One output has the gradient ((b - a) / gauge, 1 - g, g), so with |b - a| <= D on the domain
        Lip = sqrt(D^2 / gauge^2 + max (1 - g)^2 + g^2) in l2,   max(D / gauge, |1 - g|, |g|) in l1,
              D / gauge + max |1 - g| + |g| in linf,
    whose maxima lie at the ends of g. Unbounded on the whole space. Weights in [0, 1] keep y between a and b, which
    a sum of two products would not know. Split at the middle (g0, a0, b0) of the box: the rest is
    (g - g0) ((b - b0) - (a - a0)). Other l_p take their larger neighbour. Our derivation. `domain` is the region;
    the `gauge` is a power of two, so that dividing by it is exact, and balances parts of unequal size.
    """

    size: Shape
    gauge: float = 1.0
    domain: Domain | None = None

    @property
    def shape(self) -> Shape:
        return (3 * math.prod(self.size),)

    @property
    def target(self) -> Shape:
        return self.size

    @property
    def roundings(self) -> float:
        return 16.0

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        g, a, b = self.parts(z)
        mean = (1 - g) * a + g * b
        # A weight of 0 or 1 chooses, whatever the other value is: infinite values have no multiple of 0. Elsewhere the
        # mean stays as it is, because its derivative by the weight is b - a at 0 and 1 too.
        chosen = torch.where(g == 0, a, torch.where(g == 1, b, mean))
        return torch.where(torch.isfinite(mean), mean, chosen)

    def parts(self, z: Float[Tensor, "batch ..."]) -> Parts:
        """g, a and b, each like the output."""
        g, a, b = z.reshape(-1, 3, *self.size).unbind(1)
        return g / self.gauge, a, b

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        if self.domain is None:
            return torch.tensor(torch.inf, dtype=torch.float64)
        by_gate, low, high = self._sizes(*self.domain[:2])
        weights = [self._norms(by_gate, 1 - end, end, p) for end in (low, high)]
        return log_up(torch.maximum(*weights).max())

    def within(self, reach: Reach) -> "Interpolation":
        return replace(self, domain=domain_of(reach))

    def split(self, p: float) -> Split:
        if self.domain is None or not bool(torch.isfinite(self.domain[1] - self.domain[0]).all()):
            return super().split(p)
        low, high, *_ = self.domain
        middle = (low + high) / 2
        spread = torch.maximum(high - middle, middle - low) * (1 + ROUNDINGS_8)
        (g0, a0, b0), (g, a, b) = (tuple(x[0] for x in self.parts(at[None])) for at in (middle, spread))
        norms = round_up(self._norms((a + b) / self.gauge, g, g, p), 4)
        if bool(norms.max() >= exp_of(self.log_constant(p), 1.0)):
            return super().split(p)
        # The linear part has rounded factors; what they are off by is paid by the rest.
        slack = ROUNDINGS_8 * ((a0.abs() + b0.abs()) / self.gauge + 2 + 2 * g0.abs())
        center = BlockRow(tuple(Diagonal(by, self.size) for by in ((b0 - a0) / self.gauge, 1 - g0, g0)))
        return Split(center, Diagonal(norms + 2 * slack, self.size))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        (g, a, b), (h, c, d) = (tuple(x[0] for x in self.parts(end[None])) for end in (reach.low, reach.high))
        low, high = [], []
        # Affine in g for fixed a and b, so extreme at the ends of g; there a and b are extreme by themselves.
        for weight in (g, h):
            ends = [torch.stack([times(w, x) for x in pair]) for w, pair in ((1 - weight, (a, c)), (weight, (b, d)))]
            low.append(_sum([end.amin(0) for end in ends], -1.0))
            high.append(_sum([end.amax(0) for end in ends], 1.0))
        under, over = torch.minimum(*low), torch.maximum(*high)
        center = self(reach.center[None])[0]
        constant = exp_of(self.within(reach).log_constant(2.0), 1.0)
        error = 2 * ROUNDINGS_8 * torch.linalg.vector_norm(self._absolute(reach.center))
        return reach_of(under, over, center, constant * reach.radius + error)

    def shares(self) -> tuple[float, float]:
        """Constants with respect to g alone and to (a, b) alone, in l2."""
        assert self.domain is not None
        by_gate, low, high = self._sizes(*self.domain[:2])
        values = torch.maximum(torch.hypot(1 - low, low), torch.hypot(1 - high, high))
        return float(by_gate.max()) * self.gauge, float(values.max())

    def _absolute(self, z: Tensor) -> Tensor:
        g, a, b = (x[0].abs() for x in self.parts(z[None]))
        return (1 + g) * a + g * b

    def _sizes(self, low: Tensor, high: Tensor) -> Parts:
        """The largest |b - a| / gauge, and the ends of g."""
        (g, a, b), (h, c, d) = (tuple(x[0] for x in self.parts(end[None])) for end in (low, high))
        return torch.maximum(d - a, c - b) / self.gauge, g, h

    def _norms(self, by_gate: Tensor, first: Tensor, second: Tensor, p: float) -> Tensor:
        """The norm of the gradient of each output with these entries."""
        parts = torch.stack([by_gate.abs(), first.abs(), second.abs()])
        two, one, most = torch.linalg.vector_norm(parts, dim=0), parts.amax(0), parts.sum(0)
        if p == 2:
            return round_up(two, 12)
        if p in (1, math.inf):
            return round_up(one if p == 1 else most, 12)
        return round_up(torch.maximum(two, one if p < 2 else most), 12)

    def __str__(self) -> str:
        return "weighted mean"


def _sum(parts: list[Tensor], side: float) -> Tensor:
    """The sum rounded to a side; ends that are infinite stay so, and two that cancel say nothing."""
    total, size = parts[0] + parts[1], parts[0].abs() + parts[1].abs()
    known = torch.where(torch.isnan(total), side * torch.inf, total)
    return torch.where(torch.isfinite(total), total + side * ROUNDINGS_8 * size, known)
