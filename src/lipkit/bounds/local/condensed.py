"""Local constants after everything that is linear on the region has been multiplied out."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Bound, Kind, Metric, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.local.fast_lip import FastLip, largest_norm
from lipkit.bounds.local.jacobian_intervals import slopes_of
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Ranges
from lipkit.bounds.local.relaxation import Relaxation
from lipkit.bounds.local.small_gain import small_gain
from lipkit.bounds.local.uncertain_slopes import Uncertain, uncertain
from lipkit.errors import ArgumentError
from lipkit.regions import Region
from lipkit.rounding.float64 import gamma, log_up
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_16
from lipkit.trace import Network, Reach

_ULPS = ROUNDINGS_16


def largest_row_sum(
    found: Uncertain, low: Float64[Tensor, "out in"], high: Float64[Tensor, "out in"]
) -> Float64[Tensor, ""]:
    """An upper bound of max_i sum_j |M_ij| over all slopes, from an interval [low, high] for each entry.

    |y| <= a y + b on [l, u], with a = +-1 where the sign is known. So the sum is at most sum_j b_ij + (M a_i)_i, and
        |(M - C) a| <= |G| s (I - |N| s)^-1 |P a|,
    where the entries of P a cancel, as those of P in a sum of absolute values do not. Our derivation.
    """
    a, b = _chords(low, high)
    exact = (a * found.c.mid).sum(1)
    size = a.abs() * (found.c.mid.abs() + found.c.width)
    p_a = (found.p.mid @ a.mT).abs() + found.p.width @ a.abs().mT
    p_a = p_a + gamma(a.shape[1] + 8) * (found.p.mid.abs() @ a.abs().mT)
    outer = (found.g.mid.abs() + found.g.width) * found.spread
    more = (outer * found.reached(p_a).mT).sum(1) + (a.abs() * found.c.width).sum(1)
    return _total(exact, size.sum(1), b.sum(1) + more, a.shape[1] + len(p_a))


def largest_column_sum(
    found: Uncertain, low: Float64[Tensor, "out in"], high: Float64[Tensor, "out in"]
) -> Float64[Tensor, ""]:
    """The same for max_j sum_i |M_ij|, where the entries of a'G cancel."""
    a, b = _chords(low, high)
    exact = (a * found.c.mid).sum(0)
    size = a.abs() * (found.c.mid.abs() + found.c.width)
    a_g = (a.mT @ found.g.mid).abs() + a.abs().mT @ found.g.width
    a_g = a_g + gamma(len(a) + 8) * (a.abs().mT @ found.g.mid.abs())
    inner = found.reached(found.p.mid.abs() + found.p.width)
    more = (a_g * found.spread * inner.mT).sum(1) + (a.abs() * found.c.width).sum(0)
    return _total(exact, size.sum(0), b.sum(0) + more, len(a) + len(inner))


def _chords(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(a, b) with |y| <= a y + b for y in [low, high]: the line through the ends, which is above a convex function."""
    run = (high - low).clamp(min=1e-300)
    a = torch.where(low >= 0, 1.0, torch.where(high <= 0, -1.0, (high + low) / run)).clamp(-1, 1)
    b = torch.maximum(low.abs() - a * low, high.abs() - a * high)
    return a, torch.where((low >= 0) | (high <= 0), 0.0, b + _ULPS * (low.abs() + high.abs())).clamp(min=0)


def _total(exact: Tensor, size: Tensor, more: Tensor, terms: int) -> Tensor:
    slack = gamma(2 * terms + 32)
    return ((exact + slack * size).clamp(min=0) + more * (1 + slack)).max() * (1 + slack)


# Uncertain slopes for which matrices of twice their number are still factored.
_SCALED = 3000


@final
@dataclass(frozen=True)
class Condensed(RegionMethod):
    """The constant of a network of pointwise nodes on a ball or a box, through the slopes that are uncertain there.

    A neuron that is always on or always off is linear. Multiplying out all of those leaves, for every x and y,
        f(x) - f(y) = M (x - y),   M = C + G D (I - N D)^-1 P,   D diagonal, |D_i| <= half the length of its interval,
    with one row of P and N and one column of G for each slope that is still uncertain, and N strictly triangular. This
    is exact, small, and remembers that one uncertain slope enters many entries of M. With s_i the half lengths, the
    smallest of
        entries          |M - C| <= |G| s (I - |N| s)^-1 |P|, cut with the intervals of `FastLip`, in any metric;
        sums, linf       sum_j |M_ij| <= sum_j b_ij + C_i a_i + |G_i| s (I - |N| s)^-1 |P a_i|, where
                         |M_ij| <= a_ij M_ij + b_ij on its interval; l1 the same for columns;
        blocks, l2       ||C|| + sum_k ||G_k s_k^(1/2)|| r_k,   over the nodes k, where
                         r_k = ||s_k^(1/2) P_k|| + sum_j ||s_k^(1/2) N_kj s_j^(1/2)|| r_j;
        multipliers, l2  L, if for some t > 0 and all x, v (G and N with s in their columns)
                         |C x + G v|^2 + sum_i t_i ((P x + N v)_i^2 - v_i^2) <= L^2 |x|^2.
    Up to `multipliers` uncertain slopes the t_i are within `rtol` of the best, by an interior-point method; up to 3000
    they have a closed form up to their scale; beyond, the last bound is left out. The inequality is proven by a
    factorisation that is multiplied out.

    Guarantee: UPPER, all rounding counted; equal to the constant where no slope is uncertain. Not differentiable: the
    value carries no gradient; `Local(LipLT())` has one.
    Cost: three adjoints of the network for each uncertain slope and output; then 15 to 30 steps (about 10 with the
    closed form) of some ten products of matrices with a side of up to twice as many. Refuses more than `limit`
    uncertain slopes; a smooth activation has one for each neuron.
    Reference: the multipliers are those of Fazlyab et al. 2019 (LipSDP-Neuron); the reduction is ours.
    """

    metric: Metric = L2
    slopes: Ranges = field(default_factory=Relaxation)
    rtol: float = 1e-2
    multipliers: int = 256
    limit: int = 8000

    def __post_init__(self) -> None:
        if not 1e-8 <= self.rtol < 1 or self.limit < 1:
            raise ArgumentError(f"Condensed needs rtol in [1e-8, 1) and limit >= 1, got {self.rtol}, {self.limit}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        samples = each_sample(region, network.source)
        find, found = self.slopes.prepare(network), measure_network(network)
        with torch.no_grad():
            logs = [self._one(found, find, one) for one in ([region] if samples is None else samples)]
        value, of = (logs[0], Scope.WHOLE) if samples is None else (torch.stack(logs), Scope.SAMPLE)
        return Bound(value, Kind.UPPER, self, self.metric, region, of)

    def _one(self, found: MeasuredNetwork, find: Callable[[Region], list[Reach]], region: Region) -> Tensor:
        slopes = slopes_of(found, find(region))
        reduced = uncertain(found, slopes, self.limit)
        low, high = FastLip(self.metric).intervals(found, slopes)
        width = reduced.width()
        slack = ROUNDINGS_8 * (reduced.c.mid.abs() + width)
        low = torch.maximum(low, reduced.c.mid - width - slack)
        high = torch.minimum(high, reduced.c.mid + width + slack)
        by_entries = largest_norm(low, high, self.metric)
        if not len(reduced.spread):
            return by_entries
        value = self._by_structure(reduced, low, high)
        return by_entries if value is None else torch.minimum(by_entries, log_up(value, torch.zeros_like(value)))

    def _by_structure(self, reduced: Uncertain, low: Tensor, high: Tensor) -> Tensor | None:
        p_in, p_out = self.metric
        alone = len(low) == 1
        if p_in == 2 and (p_out == 2 or alone):
            value, count = reduced.by_blocks(), len(reduced.spread)
            if count > _SCALED:
                return value
            return torch.minimum(value, small_gain(reduced, self.rtol if count <= self.multipliers else None))
        if p_in == math.inf and (p_out == math.inf or alone):
            return largest_row_sum(reduced, low, high)
        return largest_column_sum(reduced, low, high) if self.metric == (1.0, 1.0) else None

    def __str__(self) -> str:
        return f"uncertain slopes from {self.slopes}"
