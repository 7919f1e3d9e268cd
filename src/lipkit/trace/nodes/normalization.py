"""Layer, group, instance and root-mean-square normalisation, without their affine part."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import DenseStack, Diagonal, Reshape, Shape, product
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import log_up, round_down, round_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes._variance import (
    apart,
    centered_box,
    change_of_projection,
    distances,
    group_norms,
    least_norm,
    least_spread,
)
from lipkit.trace.nodes.activations.curve import Interval

# Entries up to which the Jacobians of all groups are written out.
_WRITTEN_OUT = 2**24


@final
@dataclass(frozen=True, eq=False)
class Normalization(Node):
    """y = P z / s with s = sqrt(|P z|^2 / d + eps), for each group of d entries along the last axis.

    P = I - 11'/d if `centered` (layer, group, instance norm), otherwise P = I (RMS norm). The Jacobian
        J = (P - y y' / d) / s
    is symmetric, has the eigenvalue eps / s^3 along P z and 1/s across it. So in l2
        Lip = 1 / s_min  (eps / s_min^3 if the range of P is a line),   on the whole space exactly 1 / sqrt(eps).
    In l1 and linf (equal, J being symmetric) a row sum of |J| is at most h(s) = (a + b (1 - eps / s^2)) / s, where
    b = (sqrt(d) - 1) / 2 and a = 2 (d - 1) / d if centered, else 1: with |y|^2 = d r, r = 1 - eps / s^2, the diagonal
    entry is s J_ii = P_ii - y_i^2 / d >= 0, the others of P add (d - 1) / d if centered, and those of y y' / d add
    |y_i| |y_-i|_1 / d <= |y_i| sqrt(d - 1) sqrt(d r - y_i^2) / d; the largest -t^2 + t sqrt(d - 1) sqrt(d r - t^2) is
    d r b. As h rises up to s^2 = 3 b eps / (a + b) and then falls, Lip <= h(max(s_min, that)).
    Between 1 and inf other l_p interpolate. Our derivation. `spread` is a lower bound of |P z| for each group, known on
    a region: within a ball |P z| >= |P c| - radius, in a box it is the least spread. `near` is a point of that region
    and how far each group can lie from it. Split at that point: J(z) - J(point) is bounded by `change_of_projection`,
    with u = P z / (sqrt(d) s).
    """

    size: Shape
    eps: float
    centered: bool
    spread: Float64[Tensor, "..."] | None = None
    near: tuple[Float64[Tensor, "..."], Float64[Tensor, "..."]] | None = None

    def __post_init__(self) -> None:
        if not (self.size and self.size[-1] and self.eps >= 0):
            raise ArgumentError(f"Normalisation needs an axis with entries and eps >= 0, got {self.size}, {self.eps}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return self.size

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        if self.centered:
            z = z - z.mean(-1, keepdim=True)
        return z * torch.rsqrt((z * z).mean(-1, keepdim=True) + self.eps)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        return log_up(self._constants(p).max())

    def within(self, reach: Reach) -> "Normalization":
        reach = tighten(reach)
        ball = group_norms(reach.center, self.centered)[0] - reach.radius
        box = (least_spread if self.centered else least_norm)(reach.low, reach.high)
        near = (reach.center, distances(reach.low, reach.high, reach.center, reach.radius))
        return replace(self, spread=torch.maximum(ball, box).clamp(min=0.0), near=near)

    def closer(self, center: Float64[Tensor, "..."], distance: Float64[Tensor, "... 1"]) -> "Normalization":
        """The same on a region where each group also lies within a distance of that of another point."""
        assert self.near is not None, "known on a region"
        assert self.spread is not None, "known on a region"
        z, moved = self.near
        moved = torch.minimum(moved, apart(center, z, distance))
        spread = round_down((group_norms(z, self.centered)[0] - moved).clamp(min=0.0), 1)
        return replace(self, near=(z, moved), spread=torch.maximum(self.spread, spread))

    def split(self, p: float) -> Split:
        d = self.size[-1]
        if p != 2 or d == 1 or self.near is None or math.prod(self.size) * d > _WRITTEN_OUT:
            return super().split(p)
        assert self.spread is not None, "both are known on a region"
        (z, moved), root = self.near, d**0.5
        part = z - z.mean(-1, keepdim=True) if self.centered else z
        norm = torch.linalg.vector_norm(part, dim=-1, keepdim=True)
        size = (norm**2 / d + self.eps).sqrt()
        # Rounding of the point itself counts as a move: means and squares of d numbers.
        moved = moved + ROUNDINGS_8 * (d + 16) * (norm + root * z.abs().amax(-1, keepdim=True))
        least = torch.maximum((self.spread**2 / d + self.eps).sqrt(), size - moved / root)
        least = round_down(torch.minimum(least, size).clamp(min=0.0), 12)
        rest = change_of_projection(least, round_up(moved / root, 4))
        # And that of the matrix, whose entries are quotients of a few products.
        rest = round_up(rest, 2) + ROUNDINGS_8 * 16 * root / least
        # A group that moves too far has no linear part.
        most = self._constants(p).expand(rest.shape)
        near = rest < most
        rest, by = torch.where(near, rest, most), torch.where(near, 1 / size, 0.0).reshape(-1, 1, 1)
        unit = torch.where(near, part / (root * size), 0.0).reshape(-1, d)
        whole = torch.eye(d).to(z) - (1.0 / d if self.centered else 0.0)
        stack = DenseStack((whole - unit[:, :, None] * unit[:, None, :]) * by)
        center = product(Reshape(stack.out_shape, self.size), product(stack, Reshape(self.size, stack.in_shape)))
        return Split(center, Diagonal(rest, self.size))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        local, d, middle = self.within(reach), self.size[-1], reach.center
        low, high = local._box(reach, group_norms(middle, self.centered)[1] + reach.radius)
        constant = local._constants(2.0).max()
        center = self(middle[None])[0]
        # Means and squares of d numbers: relative to the input where it is divided, and to the output.
        error = ROUNDINGS_8 * (d + 8) * (constant * torch.linalg.vector_norm(middle) + torch.linalg.vector_norm(center))
        near = reach_of(low, high, center, constant * reach.radius + error)
        # |y|^2 < d for every group: a ball around 0.
        whole = round_up(center.new_tensor(float(center.numel())).sqrt(), 2)
        around = reach_of(low, high, torch.zeros_like(center), whole)
        return near if bool(near.radius <= around.radius) else around

    def _box(self, reach: Reach, largest: Tensor) -> Interval:
        """The range of y: that of P z over that of s, and never beyond sqrt(d), or sqrt(d - 1) if centered."""
        assert self.spread is not None
        d = self.size[-1]
        first, last = centered_box(reach.low, reach.high) if self.centered else (reach.low, reach.high)
        farthest = torch.maximum(first.abs(), last.abs())
        largest = torch.minimum(largest, round_up(torch.linalg.vector_norm(farthest, dim=-1, keepdim=True), d + 3))
        s_min = round_down((self.spread**2 / d + self.eps).sqrt(), 6)
        s_max = round_up((largest**2 / d + self.eps).sqrt(), 6)
        low = torch.where(first < 0, round_up((first / s_min).abs(), 2) * -1, round_down(first / s_max, 2))
        high = torch.where(last > 0, round_up((last / s_min).abs(), 2), round_down((last / s_max).abs(), 2) * -1)
        limit = round_up(torch.tensor(float(d - 1 if self.centered else d), dtype=torch.float64).sqrt(), 2).item()
        # 0 / 0 and inf / inf say nothing.
        low, high = torch.where(torch.isnan(low), -limit, low), torch.where(torch.isnan(high), limit, high)
        return low.clamp(-limit, limit), high.clamp(-limit, limit)

    def _constants(self, p: float) -> Tensor:
        """An upper bound of the constant for each group."""
        d, rank = self.size[-1], self.size[-1] - self.centered
        spread = torch.zeros(1, dtype=torch.float64) if self.spread is None else self.spread
        if rank == 0:
            return torch.zeros_like(spread)
        s2 = round_down(spread**2 / d + self.eps, 4)
        if p == 2 or d == 1:
            across = round_up(s2.rsqrt(), 3)
            return across if rank > 1 or self.eps == 0 else round_up(self.eps / s2 * across, 3)
        a, b = (2 * (d - 1) / d if self.centered else 1.0), (d**0.5 - 1) / 2
        s2 = s2.clamp(min=3 * b * self.eps / (a + b))
        inside = torch.where(s2 > 0, (1 - self.eps / s2).clamp(min=0.0), 1.0)
        return round_up((a + b * inside) * s2.rsqrt(), 12)

    def __str__(self) -> str:
        return "layer normalisation" if self.centered else "RMS normalisation"
