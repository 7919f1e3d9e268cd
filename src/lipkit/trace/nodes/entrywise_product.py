"""The entrywise product of two values, with broadcasting."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.linops import BlockRow, Diagonal, Index, LinearOperator, Reshape, Shape, product
from lipkit.regions import Domain, Reach, domain_of, reach_of, tighten
from lipkit.rounding.float64 import exp_of, log_up, round_up
from lipkit.rounding.slacks import ROUNDINGS_8, ULP
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes._extended_products import times


@final
@dataclass(frozen=True, eq=False)
class Product(Node):
    """y = a b for z = (gauge a, b) one after the other in one vector, entry by entry, broadcast as torch does.

    Along the axes both factors have in full, the outputs fall into groups that share no input; within one group
    y_st = a_s b_t is an outer product. Its Jacobian has the norms
        sqrt(|a|_2^2 + |b|_2^2) in l2,   max(|a|_1, |b|_1) in l1,   |a|_inf + |b|_inf in linf
    (l2: |da b' + a db'| is largest for da along a and db along b). Unbounded on the whole space; on a box they are
    largest at the corners, and on a ball |(a, b)| <= |(a0, b0)| + radius. Other l_p interpolate: their larger
    neighbour is taken. Split at the middle (a0, b0) of the box: a b - (b0 a + a0 b) has the same norms in the radii of
    the box. Our derivation. `domain` is the region (low, high, center, radius). With a `gauge` t other than 1 the
    Jacobian has b / t in the place of b, which balances factors of unequal size. It is a power of two: no rounding.
    """

    left: Shape
    right: Shape
    domain: Domain | None = None
    gauge: float = 1.0

    @property
    def shape(self) -> Shape:
        return (math.prod(self.left) + math.prod(self.right),)

    @property
    def target(self) -> Shape:
        return tuple(torch.broadcast_shapes(self.left, self.right))

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        a, b = self.factors(z)
        return a * b

    def factors(self, z: Float[Tensor, "batch ..."]) -> tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]:
        """a and b, each with one axis for each of the output."""
        rank = len(self.target)
        a, b = z.split([math.prod(self.left), math.prod(self.right)], -1)
        shapes = ((1,) * (rank - len(shape)) + shape for shape in (self.left, self.right))
        first, second = shapes
        return a.reshape(-1, *first) / self.gauge, b.reshape(-1, *second)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        if self.domain is None:
            return torch.tensor(torch.inf, dtype=torch.float64)
        reach = Reach(*self.domain)
        box = self._norms(torch.maximum(reach.low.abs(), reach.high.abs()), p).max()
        if p == 2:
            ball = self._norms(reach.center.abs(), 2.0).max() + reach.radius / self.gauge
            box = torch.minimum(box, round_up(ball, 2))
        return log_up(box)

    def within(self, reach: Reach) -> "Product":
        return replace(self, domain=domain_of(reach))

    def split(self, p: float) -> Split:
        if self.domain is None or not bool(torch.isfinite(self.domain[1] - self.domain[0]).all()):
            return super().split(p)
        low, high, *_ = self.domain
        middle = (low + high) / 2
        spread = torch.maximum(high - middle, middle - low) * (1 + ROUNDINGS_8)
        norms = round_up(self._norms(spread, p), 2)
        # Never more than the whole function's constant: a wide box may make the center a burden.
        whole = exp_of(self.log_constant(p), 1.0)
        if bool(norms.max() >= whole):
            return super().split(p)
        scale = norms.expand(torch.broadcast_shapes(norms.shape, (1, *self.target)))[0]
        return Split(self.derivative(middle), Diagonal(scale, self.target))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        (a, b), (c, d) = ([part[0] for part in self.factors(end[None])] for end in (reach.low, reach.high))
        corners = torch.stack([times(a, b), times(a, d), times(c, b), times(c, d)])
        low, high = corners.amin(0), corners.amax(0)
        low, high = low - ULP * low.abs(), high + ULP * high.abs()
        low, high = torch.where(torch.isnan(low), -torch.inf, low), torch.where(torch.isnan(high), torch.inf, high)
        center = self(reach.center[None])[0]
        constant = exp_of(self.within(reach).log_constant(2.0), 1.0)
        error = ULP * torch.linalg.vector_norm(center)
        return reach_of(low, high, center, constant * reach.radius + error)

    def departure(self, far: Float64[Tensor, " entries"]) -> tuple[Float64[Tensor, "..."], Float64[Tensor, " entries"]]:
        """t and W with a b - a' b' - (b0 (a - a') + a0 (b - b')) = t w, entry by entry, for |z - z0|, |z' - z0| <= far
        and w of length |w|_2 <= |W_a (ga - ga')|_2 + |W_b (b - b')|_2, where W = (W_a, W_b) is a diagonal.

        The left side is (a - a0)(b - b') + (a - a')(b' - b0), at most alpha_i |b - b'|_i + beta_i |a - a'|_i. Where
        both factors move by about (alpha_i, beta_i) at once, t_i = sqrt(alpha_i beta_i) makes the two sizes equal and
        gives entries that move little a small share. An entry of a factor that several outputs read has the weight
        (sum of alpha_i^2 / t_i^2)^(1/2) over these, so that nothing is lost by the copies.
        """
        a, b = (factor[0] for factor in self.factors(far[None]))
        wide = [torch.maximum(x, x.max() * 1e-6).clamp(min=1e-100) for x in (a, b)]
        t = (wide[0] * wide[1]).sqrt()
        weights = [
            torch.linalg.vector_norm(x / t, dim=axes, keepdim=True) if axes else x / t
            for x, axes in ((b, _copied(a, t)), (a, _copied(b, t)))
        ]
        both = torch.cat([weights[0].flatten() / self.gauge, weights[1].flatten()])
        return t, round_up(both, t.numel() + 8)

    def shares(self) -> tuple[float, float]:
        """Constants with respect to a alone and to b alone, in l2."""
        assert self.domain is not None
        sizes = torch.maximum(self.domain[0].abs(), self.domain[1].abs())
        (a, free_a), (b, free_b) = self._free(sizes)
        return float(_total(b, free_b, 2.0).max()), float(_total(a, free_a, 2.0).max())

    def _free(self, sizes: Tensor) -> tuple[tuple[Tensor, list[int]], tuple[Tensor, list[int]]]:
        """Each factor with the axes that it has and the other one lacks, over which it is summed."""
        a, b = self.factors(sizes[None])
        free_a = [i for i in range(a.ndim) if b.shape[i] == 1 and a.shape[i] > 1]
        free_b = [i for i in range(b.ndim) if a.shape[i] == 1 and b.shape[i] > 1]
        return (a, free_a), (b, free_b)

    def derivative(self, at: Float64[Tensor, " entries"]) -> LinearOperator:
        """z -> b0 a + a0 b as diagonals behind copies, so that its size is known without forming it."""
        a0, b0 = (factor[0] for factor in self.factors(at[None]))
        sides = ((self.left, b0 / self.gauge), (self.right, a0))
        return BlockRow(tuple(product(Diagonal(by, self.target), _copies(shape, self.target)) for shape, by in sides))

    def _norms(self, sizes: Tensor, p: float) -> Tensor:
        """The norm of each group's Jacobian at factors of these absolute values; axes within a group become 1."""
        (a, free_a), (b, free_b) = self._free(sizes)
        b = b / self.gauge
        count = sizes.numel() + 4
        two = torch.hypot(_total(a, free_a, 2.0), _total(b, free_b, 2.0))
        if p == 2:
            return round_up(two, count)
        one = torch.maximum(_total(a, free_a, 1.0), _total(b, free_b, 1.0))
        most = _total(a, free_a, math.inf) + _total(b, free_b, math.inf)
        if p in (1, math.inf):
            return round_up(one if p == 1 else most, count)
        return round_up(torch.maximum(two, one if p < 2 else most), count)

    def __str__(self) -> str:
        return "product"


def _copied(factor: Tensor, whole: Tensor) -> list[int]:
    """The axes along which a factor is repeated."""
    return [i for i in range(whole.ndim) if factor.shape[i] < whole.shape[i]]


def _total(x: Tensor, axes: list[int], order: float) -> Tensor:
    return torch.linalg.vector_norm(x, order, dim=axes, keepdim=True) if axes else x


def _copies(shape: Shape, target: Shape) -> LinearOperator:
    """x -> x.expand(target)."""
    if math.prod(shape) == math.prod(target):
        return Reshape(shape, target)
    positions = torch.arange(math.prod(shape)).reshape(shape).expand(target)
    return Index(positions.contiguous(), shape)
