"""Any method, on a region: every nonlinearity is known to receive only what the region lets through."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import torch

from lipkit.bound import Bound, Scope
from lipkit.bounds._base import Method, RegionMethod
from lipkit.bounds.local.ranges import Intervals, Ranges
from lipkit.errors import KindError, NeedsRegion, RegionError, ShapeError
from lipkit.linops import Shape
from lipkit.regions import Ball, Box, Region
from lipkit.rounding.slacks import ALMOST_ONE
from lipkit.trace import Network, Reach


@final
@dataclass(frozen=True)
class Local(RegionMethod):
    """The constant on a ball or a box: `inner` on the network whose nodes are restricted to what they can receive.

    If z_k(x) lies in R_k for all x of the region, then ||f(x) - f(y)|| <= K ||x - y|| there, for every K that holds of
    the network with phi_k restricted to R_k: neurons that are always on or off become linear, and nodes that are not
    Lipschitz on the whole space (products, attention) get a constant. Capped by `inner` on the whole space where that
    exists, because a smaller slope interval has another midpoint and may happen to give more.

    A region whose center (or ends) has one more axis in front is a batch: one value for each sample.

    Guarantee: UPPER for every region, convex or not. The ranges take no gradient: that of the bound goes through the
    operators and the slopes as they are, which is the whole gradient for piecewise linear activations.
    Cost: the ranges, then `inner` once for each region and once globally. Reference: the idea is in Weng et al. 2018.
    """

    inner: Method
    slopes: Ranges = field(default_factory=Intervals)

    def _bound(self, network: Network, region: Region) -> Bound:
        samples = each_sample(region, network.source)
        find = self.slopes.prepare(network)
        cap = self._everywhere(network)
        if samples is None:
            return self._one(network, region, find, cap)
        found = [self._one(network, sample, find, cap) for sample in samples]
        return Bound(
            torch.stack([bound.log_value for bound in found]),
            found[0].kind,
            self,
            found[0].metric,
            region,
            Scope.SAMPLE,
            min(sum(bound.failure for bound in found), ALMOST_ONE),
        )

    def _one(self, network: Network, region: Region, find: Callable[[Region], list[Reach]], cap: Bound | None) -> Bound:
        reaches = find(region)
        restricted = restrict(network, reaches)
        try:
            found = self.inner(restricted, region)
        except NeedsRegion as error:
            raise _without_constant(restricted, reaches, region) or error from error
        if not found.kind.certifies or found.of is not Scope.WHOLE:
            raise KindError(f"Local needs an inner method with one upper bound for the whole map, got {found}.")
        # The restricted network is another one; whoever calls this method knows the network that is meant.
        found = replace(found, kind=found.kind.restricted, region=region, lower=None, subject=None)
        best = found if cap is None else found.best(cap)
        return replace(best, method=self)

    def _everywhere(self, network: Network) -> Bound | None:
        try:
            return self.inner(network)
        except RegionError:
            return None

    def __str__(self) -> str:
        return f"{self.inner}, slopes from {self.slopes}"


def _without_constant(network: Network, reaches: list[Reach], region: Region) -> NeedsRegion | None:
    """An error that names nodes without a finite constant on this region, with the values they can receive there."""
    for p in (2.0, 1.0, math.inf):
        rows = network.without_constant(p)
        ends = [(float(reaches[k - 1].low.min()), float(reaches[k - 1].high.max())) for k in rows]
        if rows:
            what = "; ".join(
                f"{network.origin(k)} can receive values from {low:.6g} to {high:.6g}"
                for k, (low, high) in zip(rows, ends, strict=True)
            )
            return NeedsRegion(
                f"On the {region} {what}, and has no finite constant in l{p:g} there.",
                "Take a smaller region, keep its argument away from the point where it is steep (an eps in a divisor, "
                "a root or a logarithm), or declare a constant with `declared_lipschitz`.",
            )
    return None


def restrict(network: Network, reaches: list[Reach]) -> Network:
    """The same function, each node knowing where its input lies; `reaches` are those of z_1, ..., z_(K+1)."""
    nodes = tuple(node.within(reach) for node, reach in zip(network.nodes, reaches[:-1], strict=True))
    return replace(network, nodes=nodes)


def each_sample(region: Region, source: Shape) -> list[Region] | None:
    """The regions of a batch, one for each sample; None for the region of one input. Refuses what fits neither."""
    match region:
        case Ball(center):
            given = tuple(center.shape)
        case Box(low):
            given = tuple(low.shape)
        case _:
            raise RegionError(f"A local constant needs a bounded region, got {region}; give a Ball or a Box.")
    if given == source:
        return None
    if given[1:] != source or not given[0]:
        raise ShapeError(
            f"The network takes inputs of shape {source}; give a region of that shape, or of (batch, "
            f"{', '.join(map(str, source))}) for many, got {given}."
        )
    if isinstance(region, Ball):
        return [replace(region, center=center) for center in region.center]
    return [Box(low, high) for low, high in zip(region.low, region.high, strict=True)]
