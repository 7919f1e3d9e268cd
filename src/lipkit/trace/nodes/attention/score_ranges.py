"""Ranges inside of attention on a region of queries, keys and values: scores, probabilities, spreads of the rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.float64 import round_up
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8, ULP
from lipkit.trace.nodes._small_norms import spectral_within
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.attention.probabilities import jacobian_norm, probabilities

# Beyond this many rows their distances are not compared in pairs.
_PAIRS = 1024


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Matrices (heads, rows, width) in a box, and in a Frobenius ball that they may share with others."""

    low: Float64[Tensor, "heads rows width"]
    high: Float64[Tensor, "heads rows width"]
    center: Float64[Tensor, "heads rows width"]
    radius: Float64[Tensor, ""]

    @cached_property
    def sizes(self) -> Float64[Tensor, "heads rows width"]:
        """The largest absolute value of every entry."""
        return torch.minimum(
            torch.maximum(self.low.abs(), self.high.abs()), round_up(self.center.abs() + self.radius, 1)
        )

    @cached_property
    def norms(self) -> Float64[Tensor, "heads rows"]:
        """The largest l2 norm of every row."""
        box = torch.linalg.vector_norm(self.sizes, dim=-1)
        ball = torch.linalg.vector_norm(self.center, dim=-1) + self.radius
        return round_up(torch.minimum(box, ball), self.low.shape[-1] + 4)

    @cached_property
    def spectral(self) -> Float64[Tensor, " heads"]:
        """The largest spectral norm."""
        return spectral_within(self.low, self.high, self.center, self.radius)

    @cached_property
    def ranges(self) -> Float64[Tensor, "heads width"]:
        """How far two rows can lie apart in each coordinate."""
        box = self.high.amax(-2) - self.low.amin(-2)
        # Two rows move against each other by sqrt(2) radius at most.
        ball = self.center.amax(-2) - self.center.amin(-2) + 2**0.5 * self.radius
        return round_up(torch.minimum(box, ball), 4)

    @cached_property
    def half_diameter(self) -> Float64[Tensor, " heads"]:
        """Half the largest distance of two rows."""
        middle, width = (self.low + self.high) / 2, self.low.shape[-1]
        spread = round_up(torch.linalg.vector_norm(self.high - self.low, dim=-1).amax(-1) / 2, width + 4)
        coordinates = torch.linalg.vector_norm(self.ranges, dim=-1) / 2
        box = _half_diameter(torch.where(torch.isfinite(middle), middle, 0.0)) + spread
        ball = _half_diameter(self.center) + 0.5**0.5 * self.radius
        return round_up(torch.minimum(torch.minimum(coordinates, box), ball), width + 8)

    @cached_property
    def deviation(self) -> Float64[Tensor, " heads"]:
        """The largest spectral norm of X - 1 m', with m the mean row at the center."""
        mean = self.center.mean(-2, keepdim=True)
        # The differences are rounded once, relative to their terms.
        slack = ULP * (self.sizes + mean.abs())
        slack = torch.where(torch.isfinite(slack), slack, 0.0)
        radius = self.radius + torch.linalg.vector_norm(slack)
        return spectral_within(self.low - mean - slack, self.high - mean + slack, self.center - mean, radius)


def _half_diameter(points: Tensor) -> Tensor:
    """Half the diameter of finitely many points; for very many, a radius that encloses them."""
    if points.shape[-2] > _PAIRS:
        apart = torch.linalg.vector_norm(points - points.mean(-2, keepdim=True), dim=-1).amax(-1)
    else:
        # Distances from differences: the form by inner products cancels.
        pairs = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        apart = pairs.amax((-1, -2)) / 2
    return round_up(apart, points.shape[-1] + 4) + ROUNDINGS_8 * points.abs().amax((-1, -2))


@final
@dataclass(frozen=True, eq=False)
class AttentionRange:
    """Bounds of everything the constants of attention are made of; see `Attention` for the formulas."""

    queries: Rows
    keys: Rows
    values: Rows
    scale: float
    mask: Tensor | None

    @cached_property
    def scores(self) -> Interval:
        """The range of every score, by the box (midpoint-radius product) and by the ball."""
        q, k, width = self.queries, self.keys, self.queries.low.shape[-1]
        middles, radii = zip(*((_middle(x), _radius(x)) for x in (q, k)), strict=True)
        product = middles[0] @ middles[1].mT
        apart = middles[0].abs() @ radii[1].mT + radii[0] @ (middles[1].abs() + radii[1]).mT
        at = q.center @ k.center.mT
        # |q.k - q0.k0| <= |q0| |dk| + |k0| |dq| + |dq| |dk|, where |dq|^2 + |dk|^2 <= radius^2.
        norms = [torch.linalg.vector_norm(x.center, dim=-1) for x in (q, k)]
        moved = torch.hypot(norms[0][..., None], norms[1][..., None, :]) * q.radius + q.radius**2 / 2
        # Sums of `width` products are off by as many units of the sizes of their terms.
        slack = (width + 8) * ROUNDINGS_8 * (q.norms[..., None] * k.norms[..., None, :])
        apart, moved = round_up(apart, width + 8) + slack, round_up(moved, width + 8) + slack
        low = torch.maximum(product - apart, at - moved)
        high = torch.minimum(product + apart, at + moved)
        low, high = torch.where(torch.isnan(low), -torch.inf, low), torch.where(torch.isnan(high), torch.inf, high)
        low, high = (low * self.scale, high * self.scale) if self.scale >= 0 else (high * self.scale, low * self.scale)
        if self.mask is None:
            return low, high
        mask = self.mask.to(low)
        slack = ULP * torch.where(torch.isfinite(mask), mask.abs(), 0.0)
        hidden = mask == -torch.inf
        return torch.where(hidden, mask, low + mask - slack), torch.where(hidden, mask, high + mask + slack)

    @cached_property
    def probabilities(self) -> Interval:
        """The range of every probability."""
        return probabilities(*self.scores)

    @cached_property
    def column(self) -> Float64[Tensor, " heads"]:
        """The largest column sum of the probabilities."""
        rows = self.probabilities[1].shape[-2]
        return round_up(self.probabilities[1].sum(-2).amax(-1), rows + 2)

    def deviations(self, of: Rows) -> Float64[Tensor, "heads rows"]:
        """Upper bounds of the square roots of |Cov_i(x, x)|_2, one for each query."""
        most = self.probabilities[1].amax(-1)
        return torch.minimum(of.half_diameter[..., None], round_up(most.sqrt() * of.deviation[..., None], 4))

    def two(self) -> Float64[Tensor, " heads"]:
        """The l2 constant of each head."""
        spread = self.deviations(self.values)
        by_query = (spread * self.deviations(self.keys)).amax(-1)
        weighted = ((spread * self.queries.norms) ** 2)[..., None] * self.probabilities[1]
        rows = weighted.shape[-2]
        first = round_up(weighted.sum(-2).amax(-1), rows + 6).sqrt()
        second = self.queries.spectral * (spread * jacobian_norm(2.0, *self.probabilities).sqrt()).amax(-1)
        by_key = torch.minimum(_without_nan(first), _without_nan(second))
        moving = torch.hypot(_without_nan(by_query), by_key) * abs(self.scale)
        return round_up(torch.sqrt(moving**2 + self.column), 12)

    def infinity(self) -> Float64[Tensor, " heads"]:
        """The linf constant of each head."""
        lengths = self.queries.sizes.sum(-1).amax(-1)
        inner = self.keys.ranges.sum(-1) / 2 + lengths
        moving = _without_nan(self.values.ranges.amax(-1) / 2 * inner) * abs(self.scale)
        return round_up(1 + moving, self.queries.low.shape[-1] + 8)

    def one(self) -> Float64[Tensor, " heads"]:
        """The l1 constant of each head."""
        spread = self.values.ranges.sum(-1)
        by_query = self.keys.ranges.amax(-1) / 2 * spread / 2
        low, high = self.probabilities
        at = torch.full_like(low, 0.5).clamp(low, high)
        weights = (at * (1 - at)).mT @ self.queries.sizes
        by_key = spread * weights.amax((-1, -2))
        moving = torch.maximum(_without_nan(by_query), _without_nan(by_key)) * abs(self.scale)
        count = self.values.low.shape[-1] + self.queries.low.shape[-2] + 8
        return round_up(torch.maximum(moving, self.column), count)

    def outputs(self) -> Interval:
        """The range of every output: a mean of the values, with weights in their ranges."""
        v, keys = self.values, self.values.low.shape[-2]
        least, most = v.low.amin(-2, keepdim=True), v.high.amax(-2, keepdim=True)
        mean = v.center.mean(-2, keepdim=True)
        few, many = self.probabilities
        slack = (keys + 8) * ROUNDINGS_8 * v.sizes.amax(-2, keepdim=True)
        above_mean, below_mean = (v.high - mean).clamp(min=0.0), (mean - v.low).clamp(min=0.0)
        high = mean + many @ above_mean - few @ (mean - v.high).clamp(min=0.0) + slack
        low = mean - many @ below_mean + few @ (v.low - mean).clamp(min=0.0) - slack
        low, high = torch.where(torch.isnan(low), least, low), torch.where(torch.isnan(high), most, high)
        return torch.maximum(low, least), torch.minimum(high, most)


def _middle(x: Rows) -> Tensor:
    middle = (x.low + x.high) / 2
    return torch.where(torch.isfinite(middle), middle, 0.0)


def _radius(x: Rows) -> Tensor:
    radius = (x.high - x.low) / 2
    return torch.where(torch.isnan(radius), torch.inf, radius) * (1 + ROUNDINGS_4)


def _without_nan(value: Tensor) -> Tensor:
    """Zero times infinity says nothing."""
    return torch.where(torch.isnan(value), torch.inf, value)
