"""Division of vectors by their length."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import DenseStack, Diagonal, Reshape, Shape, product
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import exp_of, log_up, round_down, round_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes._variance import apart, change_of_projection, distances, group_norms, least_norm

# Entries up to which the Jacobians of all vectors are written out.
_WRITTEN_OUT = 2**24


@final
@dataclass(frozen=True, eq=False)
class Unit(Node):
    """y = z / max(|z|_2, eps) for each vector along the last axis.

    Within |z| < eps the Jacobian is I / eps, beyond it (I - u u') / |z| with u = z / |z|. So with n = max(|z|_min, eps)
        Lip = 1 / n in l2,   (sqrt(d) + 1) / (2 n) in l1 and linf,
    the latter as a row sum is (1 - u_i^2 + |u_i| |u_-i|_1) / |z| and -t^2 + t sqrt(d - 1) sqrt(1 - t^2) is at most
    (sqrt(d) - 1) / 2, attained. Between them other l_p interpolate. Our derivation. `least` is a lower bound of |z|
    for each vector, known on a region; `near` is a point of it and how far each vector can lie from that. Split at the
    point by `change_of_projection`; a vector that may cross |z| = eps has no linear part.
    """

    size: Shape
    eps: float
    least: Float64[Tensor, "..."] | None = None
    near: tuple[Float64[Tensor, "..."], Float64[Tensor, "..."]] | None = None

    def __post_init__(self) -> None:
        if not (self.size and self.size[-1] and self.eps >= 0):
            raise ArgumentError(f"Normalising needs an axis with entries and eps >= 0, got {self.size}, {self.eps}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return self.size

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return z / torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp(min=self.eps)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        least = torch.zeros(1, dtype=torch.float64) if self.least is None else self.least
        factor = 1.0 if p == 2 else (self.size[-1] ** 0.5 + 1) / 2
        return log_up(round_up(factor / least.clamp(min=self.eps), 3).max())

    def within(self, reach: Reach) -> "Unit":
        reach = tighten(reach)
        ball = round_down((group_norms(reach.center, False)[0] - reach.radius).clamp(min=0.0), 1)
        near = (reach.center, distances(reach.low, reach.high, reach.center, reach.radius))
        return replace(self, least=torch.maximum(ball, least_norm(reach.low, reach.high)), near=near)

    def closer(self, center: Float64[Tensor, "..."], distance: Float64[Tensor, "... 1"]) -> "Unit":
        """The same on a region where each vector also lies within a distance of that of another point."""
        assert self.near is not None, "known on a region"
        assert self.least is not None, "known on a region"
        z, moved = self.near
        moved = torch.minimum(moved, apart(center, z, distance))
        least = round_down((group_norms(z, False)[0] - moved).clamp(min=0.0), 1)
        return replace(self, near=(z, moved), least=torch.maximum(self.least, least))

    def split(self, p: float) -> Split:
        d = self.size[-1]
        if p != 2 or self.near is None or math.prod(self.size) * d > _WRITTEN_OUT:
            return super().split(p)
        assert self.least is not None, "both are known on a region"
        z, moved = self.near
        size = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        # Rounding of the length counts as a move.
        moved = moved + ROUNDINGS_8 * (d + 16) * size
        least = round_down(torch.minimum(torch.maximum(self.least, size - moved), size).clamp(min=0.0), 8)
        beyond, inside = least > self.eps, round_up(size + moved, 4) < self.eps
        rest = change_of_projection(least, moved) + ROUNDINGS_8 * 16 * d**0.5 / least
        whole = round_up(1 / self.least.clamp(min=self.eps), 3)
        rest = torch.where(beyond, rest, torch.where(inside, round_up(ROUNDINGS_8 * d**0.5 * whole, 2), whole))
        if not bool(rest.max() < exp_of(self.log_constant(p), 1.0)):
            return super().split(p)
        unit = torch.where(beyond, z / size, 0.0).reshape(-1, d)
        by = torch.where(beyond, 1 / size, torch.where(inside, 1 / size.clamp(min=self.eps), 0.0)).reshape(-1, 1, 1)
        stack = DenseStack((torch.eye(d).to(z) - unit[:, :, None] * unit[:, None, :]) * by)
        center = product(Reshape(stack.out_shape, self.size), product(stack, Reshape(self.size, stack.in_shape)))
        return Split(center, Diagonal(rest, self.size))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        local, d, middle = self.within(reach), self.size[-1], reach.center
        assert local.least is not None
        farthest = torch.maximum(reach.low.abs(), reach.high.abs())
        most = torch.minimum(
            group_norms(middle, False)[1] + reach.radius,
            round_up(torch.linalg.vector_norm(farthest, dim=-1, keepdim=True), d + 2),
        ).clamp(min=self.eps)
        least = local.least.clamp(min=self.eps)
        low = torch.where(reach.low < 0, reach.low / least, reach.low / most)
        high = torch.where(reach.high > 0, reach.high / least, reach.high / most)
        low = torch.where(torch.isnan(low), -1.0, low - ROUNDINGS_8 * low.abs()).clamp(-1.0, 1.0)
        high = torch.where(torch.isnan(high), 1.0, high + ROUNDINGS_8 * high.abs()).clamp(-1.0, 1.0)
        center = self(middle[None])[0]
        error = ROUNDINGS_8 * (d + 4) * torch.linalg.vector_norm(center)
        return reach_of(low, high, center, local.log_constant(2.0).exp() * reach.radius + error)

    def __str__(self) -> str:
        return "division by the length"
