"""Local constants after everything that is linear on the region has been multiplied out."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from lipkit.bound import L2, Bound, Kind, Metric, Of
from lipkit.bounds._base import Method
from lipkit.bounds._jacobian_intervals import slopes_of
from lipkit.bounds._measured import MeasuredNetwork, measured
from lipkit.bounds._small_gain import small_gain
from lipkit.bounds._uncertain import uncertain
from lipkit.bounds.fast_lip import largest_norm
from lipkit.bounds.local import each_sample
from lipkit.bounds.ranges import Ranges
from lipkit.bounds.relaxation import Relaxation
from lipkit.errors import ArgumentError
from lipkit.norms._rounding import log_up
from lipkit.regions import Region
from lipkit.trace import Network, Reach


@final
@dataclass(frozen=True)
class Condensed(Method):
    """The constant of a network of pointwise nodes on a ball or a box, through the slopes that are uncertain there.

    A neuron that is always on or always off is linear. Multiplying out all of those leaves, for every x and y,
        f(x) - f(y) = M (x - y),   M = C + G D (I - N D)^-1 P,   D diagonal, |D_i| <= half the length of its interval,
    with one row of P and N and one column of G for each slope that is still uncertain, and N strictly triangular. This
    is exact, small, and remembers that one uncertain slope enters many entries of M. With s_i the half lengths, the
    smallest of
        entries          |M - C| <= |G| s (I - |N| s)^-1 |P|, then norms as in `FastLip`, in any metric;
        blocks, l2       ||C|| + sum_k ||G_k s_k^(1/2)|| r_k,   over the nodes k, where
                         r_k = ||s_k^(1/2) P_k|| + sum_j ||s_k^(1/2) N_kj s_j^(1/2)|| r_j;
        multipliers, l2  L, if for some t > 0 and all x, v (G and N with s in their columns)
                         |C x + G v|^2 + sum_i t_i ((P x + N v)_i^2 - v_i^2) <= L^2 |x|^2.
    The t_i are within `rtol` of the best, by an interior-point method, and the inequality is proven by a factorisation
    that is multiplied out. This last bound is used up to `multipliers` uncertain slopes.

    Guarantee: UPPER, all rounding counted; equal to the constant where no slope is uncertain.
    Cost: three adjoints of the network for each uncertain slope and output; then 15 to 30 steps of some ten products
    of matrices with a side of twice as many. Refuses more than `limit` uncertain slopes; a smooth activation has one
    for each neuron.
    Reference: the multipliers are those of Fazlyab et al. 2019 (LipSDP-Neuron); the reduction is ours.
    """

    metric: Metric = L2
    slopes: Ranges = field(default_factory=Relaxation)
    rtol: float = 1e-2
    multipliers: int = 500
    limit: int = 8000

    def __post_init__(self) -> None:
        if not 1e-8 <= self.rtol < 1 or self.limit < 1:
            raise ArgumentError(f"Condensed needs rtol in [1e-8, 1) and limit >= 1, got {self.rtol}, {self.limit}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        samples = each_sample(region, network.source)
        find, found = self.slopes.prepare(network), measured(network)
        with torch.no_grad():
            logs = [self._one(found, find, one) for one in ([region] if samples is None else samples)]
        value, of = (logs[0], Of.WHOLE) if samples is None else (torch.stack(logs), Of.SAMPLE)
        return Bound(value, Kind.UPPER, self, self.metric, region, of)

    def _one(self, found: MeasuredNetwork, find: Callable[[Region], list[Reach]], region: Region) -> Tensor:
        reduced = uncertain(found, slopes_of(found, find(region)), self.limit)
        width = reduced.width()
        low, high = reduced.c.mid - width, reduced.c.mid + width
        slack = 2.0**-50 * (reduced.c.mid.abs() + width)
        by_entries = largest_norm(low - slack, high + slack, self.metric)
        euclidean = self.metric == L2 or (self.metric.p_in == 2 and math.prod(found.network.target) == 1)
        if not euclidean or not len(reduced.spread):
            return by_entries
        value = reduced.by_blocks()
        if len(reduced.spread) <= self.multipliers:
            value = torch.minimum(value, small_gain(reduced, self.rtol))
        return torch.minimum(by_entries, log_up(value, torch.zeros_like(value)))

    def __str__(self) -> str:
        return f"uncertain slopes from {self.slopes}"
