"""The product of two matrices that both depend on the input."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.linops import BlockRow, Conv, LinearOperator, Permute, Reshape, Shape, product
from lipkit.regions import Domain, Reach, domain_of, reach_of, tighten
from lipkit.rounding.float64 import exp_of, log_up, round_up
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes._small_norms import spectral_above, spectral_within


@final
@dataclass(frozen=True, eq=False)
class MatrixProduct(Node):
    """Y_g = A_g B_g for g = 1..`groups`, A of (rows, inner), B of (inner, cols); z = (A, B) one after the other.

    The Jacobian dA B + A dB of one group has, as J J' = I x B'B + A A' x I is a Kronecker sum, the norms
        sqrt(|A|_2^2 + |B|_2^2) in l2 (spectral norms),
        max over j of (column sum j of |A|, row sum j of |B|) in l1,
        largest row sum of |A| + largest column sum of |B| in linf.
    Unbounded on the whole space; on a region each norm is bounded by the box and by the ball. Split at the middle of
    the box: A B - (A B0 + A0 B) has the same norms in the radii of the box; in l2, where that is less, at the center of
    the ball, with its radius. Our derivation. `domain` is the region.
    """

    groups: int
    rows: int
    inner: int
    cols: int
    domain: Domain | None = None

    @property
    def shape(self) -> Shape:
        return (self.groups * self.inner * (self.rows + self.cols),)

    @property
    def target(self) -> Shape:
        return (self.groups, self.rows, self.cols)

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        a, b = self.factors(z)
        return a @ b

    def factors(self, z: Float[Tensor, "batch ..."]) -> tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]:
        """A and B, each (batch, groups, ., .)."""
        cut = self.groups * self.rows * self.inner
        a, b = z[:, :cut], z[:, cut:]
        return a.reshape(-1, self.groups, self.rows, self.inner), b.reshape(-1, self.groups, self.inner, self.cols)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        if self.domain is None:
            return torch.tensor(torch.inf, dtype=torch.float64)
        reach = Reach(*self.domain)
        sizes = torch.maximum(reach.low.abs(), reach.high.abs())
        if p != 2:
            return log_up(self._norm(sizes, p))
        ends = zip(*(self.factors(x[None]) for x in (reach.low, reach.high, reach.center)), strict=True)
        apart = torch.hypot(*(spectral_within(low, high, at, reach.radius) for low, high, at in ends)).max()
        # Both factors share one ball, so its radius counts once.
        ball = self._norm(reach.center, 2.0) + reach.radius
        return log_up(round_up(torch.minimum(apart, ball), 4))

    def within(self, reach: Reach) -> "MatrixProduct":
        return replace(self, domain=domain_of(reach))

    def split(self, p: float) -> Split:
        if self.domain is None or not bool(torch.isfinite(self.domain[1] - self.domain[0]).all()):
            return super().split(p)
        low, high, center, radius = self.domain
        middle = (low + high) / 2
        spread = torch.maximum(high - middle, middle - low) * (1 + ROUNDINGS_8)
        rest = self._norm(spread, p)
        if p == 2 and bool(radius < rest):
            # Around the center of the ball a factor moves by the radius at most, both of them together.
            middle, rest = center, radius
        if bool(rest >= exp_of(self.log_constant(p), 1.0)):
            return super().split(p)
        return Split(self.derivative(middle), Reshape(self.target, self.target) * round_up(rest, 2))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        (a, b), (c, d) = ([part[0] for part in self.factors(end[None])] for end in (reach.low, reach.high))
        bounded = bool(torch.isfinite(reach.high - reach.low).all())
        if bounded:
            # Middle times middle, plus or minus what the radii add (Rump's midpoint-radius product).
            middles, radii = ((a + c) / 2, (b + d) / 2), ((c - a) / 2, (d - b) / 2)
            value = middles[0] @ middles[1]
            grown = (middles[0].abs() + radii[0], middles[1].abs() + radii[1])
            spread = radii[0] @ grown[1] + middles[0].abs() @ radii[1]
            # Sums of `inner` products, and the rounding of middles and radii: relative to the largest entries.
            count = self.inner + 8
            spread = spread * (1 + count * ROUNDINGS_4) + count * ROUNDINGS_8 * (grown[0] @ grown[1])
            low, high = value - spread, value + spread
        else:
            low, high = (torch.full(self.target, s * torch.inf, dtype=torch.float64) for s in (-1, 1))
        center = self(reach.center[None])[0]
        constant = exp_of(self.within(reach).log_constant(2.0), 1.0)
        error = ROUNDINGS_4 * (self.inner + 2) * torch.linalg.vector_norm(self(reach.center.abs()[None])[0])
        return reach_of(low, high, center, constant * reach.radius + error)

    def derivative(self, at: Float64[Tensor, " entries"]) -> LinearOperator:
        """z -> A B0 + A0 B as convolutions with one tap, along the rows of A and the columns of B."""
        a0, b0 = (factor[0] for factor in self.factors(at[None]))
        of_a = multiply_channels(b0.mT, self.rows)
        turned = tuple(
            Permute((self.groups, n, m), (0, 2, 1)) for n, m in ((self.cols, self.rows), (self.rows, self.inner))
        )
        left = product(turned[0], product(of_a, turned[1]))
        return BlockRow((left, multiply_channels(a0, self.cols)))

    def _norm(self, z: Tensor, p: float) -> Tensor:
        """An upper bound of the Jacobian's norm at the point z, the largest of all groups."""
        a, b = (part[0] for part in self.factors(z[None]))
        count = self.inner + self.rows + self.cols + 4
        two = torch.hypot(spectral_above(a), spectral_above(b)).max()
        if p == 2:
            return round_up(two, 4)
        a, b = a.abs(), b.abs()
        one = torch.maximum(a.sum(-2).amax(-1), b.sum(-1).amax(-1)).max()
        most = (a.sum(-1).amax(-1) + b.sum(-2).amax(-1)).max()
        if p in (1, math.inf):
            return round_up(one if p == 1 else most, count)
        return round_up(torch.maximum(two, one if p < 2 else most), count)

    def __str__(self) -> str:
        return "matrix product"


def multiply_channels(matrices: Float64[Tensor, "groups out inner"], places: int) -> LinearOperator:
    """X_g -> W_g X_g for X_g of (inner, places): nothing is written out for each place."""
    groups, out, inner = matrices.shape
    conv = Conv(matrices.reshape(groups * out, inner, 1), (places,), (1,), ((0, 0),), (1,), groups)
    before = Reshape((groups, inner, places), conv.in_shape)
    return product(Reshape(conv.out_shape, (groups, out, places)), product(conv, before))
