"""Intervals for every partial derivative on a region, and the norm of all matrices within."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Bound, Kind, Metric, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.local.jacobian_intervals import Slopes, Span, backward, forward, slopes_of
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Intervals, Ranges, middle
from lipkit.errors import TooLargeError
from lipkit.linops import Dense
from lipkit.norms import Auto, Mixed
from lipkit.regions import Region
from lipkit.trace import Network, Reach

# Entries of a batch of vectors that go through the network together.
_CHUNK_ENTRIES = 2**23


@final
@dataclass(frozen=True)
class FastLip(RegionMethod):
    """The constant of a network of pointwise nodes on a ball or a box, from an interval for every partial derivative.

    f(x) - f(y) = M (x - y) with M = A_L D_L ... D_1 A_1 and D_k the difference quotients, in the slope intervals of the
    activations on the region's ranges. M is enclosed entry by entry, once from the output backward and once from the
    input forward, and both intervals are intersected, [lo, hi]. Then
        l_p -> l_inf   largest dual(p)-norm of a row of max(|lo|, |hi|);     l1 -> l_q   largest q-norm of a column;
        l2 -> l2       the smaller of || max(|lo|, |hi|) ||_2 and ||(lo + hi)/2||_2 + ||(hi - lo)/2||_2;
        l_p -> l_p     Riesz-Thorin on max(|lo|, |hi|); for one output all l_p are the dual norm of the row.

    Guarantee: UPPER, in every float64 operation rounded outward; equal to the constant where no slope is uncertain.
    Not differentiable: the value carries no gradient; `Local(LipLT())` has one.
    Cost: three adjoints of the network for each output, and three applications for each input coordinate; the forward
    half is left out where it would exceed `limit` entries. Intervals forget that one uncertain slope enters many
    entries, so they widen with depth and width: `Condensed` remembers.
    Reference: Weng et al. 2018 (Fast-Lip), there two layers of ReLU; depth, direction, other activations and general
    operators are ours.
    """

    metric: Metric = L2
    slopes: Ranges = field(default_factory=Intervals)
    limit: int = 2**27

    def _bound(self, network: Network, region: Region) -> Bound:
        samples = each_sample(region, network.source)
        find, found = self.slopes.prepare(network), measure_network(network)
        with torch.no_grad():
            if samples is None:
                return self._say(self._one(found, find, region), region, Scope.WHOLE)
            logs = [self._one(found, find, sample) for sample in samples]
            return self._say(torch.stack(logs), region, Scope.SAMPLE)

    def _say(self, log_value: Tensor, region: Region, of: Scope) -> Bound:
        return Bound(log_value, Kind.UPPER, self, self.metric, region, of)

    def _one(self, found: MeasuredNetwork, find: Callable[[Region], list[Reach]], region: Region) -> Tensor:
        low, high = self.intervals(found, slopes_of(found, find(region)))
        return largest_norm(low, high, self.metric)

    def intervals(
        self, found: MeasuredNetwork, slopes: Slopes
    ) -> tuple[Float64[Tensor, "out in"], Float64[Tensor, "out in"]]:
        """[lo, hi]: an interval for every entry of every difference quotient."""
        network = found.network
        inputs, outputs = math.prod(network.source), math.prod(network.target)
        if inputs * outputs > self.limit:
            raise TooLargeError(
                f"The Jacobian has {outputs} x {inputs} entries, the limit is {self.limit}; use Local, or raise limit."
            )
        low, high = _stack([backward(found, slopes, network.sink, units)[0] for units in _units(found, network.target)])
        widest = max(math.prod(network.shape_into(k)) for k in range(1, network.sink + 1))
        if inputs * widest <= self.limit:
            found_low, found_high = _stack([forward(found, slopes, units) for units in _units(found, network.source)])
            low, high = torch.maximum(low, found_low.mT), torch.minimum(high, found_high.mT)
        return low, high

    def __str__(self) -> str:
        return f"interval Jacobian, slopes from {self.slopes}"


def largest_norm(
    low: Float64[Tensor, "out in"], high: Float64[Tensor, "out in"], metric: Metric
) -> Float64[Tensor, ""]:
    """log of an upper bound of the norm of every matrix in [low, high]."""
    largest = Dense(torch.maximum(low.abs(), high.abs()))
    if len(low) == 1:
        return Mixed(metric.p_in, math.inf)(largest).log_value
    if metric != L2:
        return Mixed(metric.p_in, metric.p_out)(largest).log_value
    mid, width = middle(low, high)
    norm = Auto()
    return torch.minimum(norm(largest).log_value, norm(Dense(mid)).sum(norm(Dense(width))).log_value)


def _units(found: MeasuredNetwork, shape: tuple[int, ...]) -> list[Tensor]:
    """Unit vectors of a shape in batches small enough for memory."""
    network = found.network
    size = math.prod(shape)
    widest = max(math.prod(network.shape_into(k)) for k in range(1, network.sink + 1))
    step = max(1, _CHUNK_ENTRIES // max(widest, math.prod(network.source)))
    units = torch.eye(size, dtype=torch.float64, device=found.device)
    return [chunk.reshape(-1, *shape) for chunk in units.split(step)]


def _stack(spans: list[Span]) -> tuple[Tensor, Tensor]:
    ends = [span.ends for span in spans]
    return torch.cat([low.flatten(1) for low, _ in ends]), torch.cat([high.flatten(1) for _, high in ends])
