"""The smallest bound that a time budget allows, cheapest methods first."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import final

from lipkit.bound import L2, Bound, Metric
from lipkit.bounds._base import Method
from lipkit.bounds._predicted import most_slopes, row_seconds
from lipkit.bounds.best import smallest
from lipkit.bounds.condensed import Condensed
from lipkit.bounds.dag import DAG
from lipkit.bounds.liplt import LipLT
from lipkit.bounds.local import Local, each_sample
from lipkit.bounds.sdp import LipSDP
from lipkit.bounds.sdp_solver import InteriorPoint
from lipkit.errors import ArgumentError, NotProvenError, TooLargeError
from lipkit.norms import Auto as AutoNorm
from lipkit.norms import Norm
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise

# Neurons up to which semidefinite bounds are tried, on the whole space and on a region, where most are linear.
_PROGRAM, _REGION = 400, 20000
# Composed maps need more iterations than the blocks that the first rung measures, by about this factor for each block.
_HARDER = 5.0
# How far a prediction from a smaller window may exceed the time left: long maps cost less than their blocks, because
# minor terms are measured loosely or not at all, and LipLT stops by itself.
_PATIENCE = 3.0
# Of the time left, what a method that can stop by itself may use: something is always done before it and after it.
_SHARE = 0.9


@final
@dataclass(frozen=True)
class Auto(Method):
    """Runs a ladder of methods, cheapest first, while the predicted time of the next one fits into `budget` seconds:

        everywhere    the fold, LipLT with the largest window that fits, LipSDP up to 400 neurons;
        on a region   the same through `Local`, and `Condensed` up to 20,000 neurons.

    The first rung is always taken, whatever it costs. LipLT is predicted from its time and from the number of blocks
    that one application of each map passes; once a window has run, a larger one is predicted from the time of that.
    LipLT and LipSDP stop by themselves when what is left of the budget is spent, and keep what they have.
    `Condensed` is predicted from the neurons that intervals leave uncertain, and limited to as many slopes as there is
    time for. A method that refuses a network as too large, or cannot prove anything, is left out. All results are in
    `parts`.

    Guarantee: EXACT or UPPER, as the best rung's is. Cost: the budget, or the first rung; beyond it at most one norm of
    a composed map, or one step and the proof of a semidefinite program, or what `Condensed` was underestimated by.
    """

    budget: float = 60.0
    norm: Norm = AutoNorm()
    metric: Metric = L2

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise ArgumentError(f"Auto.budget is a number of seconds > 0, got {self.budget}.")

    def __str__(self) -> str:
        return f"the best within {self.budget:g} s"

    @property
    def reads_region(self) -> bool:
        """True: the region decides what is found."""
        return True

    def _bound(self, network: Network, region: Region) -> Bound:
        started = monotonic()
        ladder = _Ladder(self, network, region, started + self.budget)
        results = [ladder.first()]
        for method in ladder.later(monotonic() - started):
            try:
                results.append(method(network, region))
            except (TooLargeError, NotProvenError):
                continue
        return smallest(results)


@final
@dataclass(frozen=True, eq=False)
class _Ladder:
    """The rungs for one network and region; each is offered when the one before has run."""

    chosen: Auto
    network: Network
    region: Region
    end: float

    @property
    def left(self) -> float:
        return self.end - monotonic()

    @property
    def everywhere(self) -> bool:
        return self.region == Everywhere()

    @property
    def runs(self) -> int:
        """How often `Local` calls the method inside it: once for each sample, and once for the whole space."""
        if self.everywhere:
            return 1
        samples = each_sample(self.region, self.network.source)
        return 2 if samples is None else 1 + len(samples)

    def first(self) -> Bound:
        fold = DAG(self.chosen.norm, metric=self.chosen.metric)
        return (fold if self.everywhere else Local(fold))(self.network, self.region)

    def later(self, first: float) -> Iterator[Method]:
        """The rungs above the first one, which took `first` seconds."""
        yield from self._windows(first)
        neurons = sum(
            math.prod(node.shape)
            for node in self.network.nodes
            if not (isinstance(node, Pointwise) and node.is_identity)
        )
        # About a second for two hundred neurons, growing with their cube.
        left = self.left
        fits = left > 0 and (neurons / 200) ** 3 <= left
        # Without neurons there is nothing to multiply: LipLT has measured the one linear map.
        if self.everywhere and self.chosen.metric == L2 and 0 < neurons <= _PROGRAM and fits:
            yield LipSDP(solver=InteriorPoint(seconds=_SHARE * left))
        if not self.everywhere and neurons <= _REGION:
            yield from self._condensed()

    def _windows(self, first: float) -> Iterator[Method]:
        # LipLT measures the blocks by themselves first, as the fold did.
        if first >= self.left:
            return
        blocks = len(DAG().fused(self.network).blocks)
        unit, done = _HARDER * first / max(1, blocks), 0
        works = {window: LipLT(window=window).work(self.network) for window in (2, 6, None)}
        for window, work in works.items():
            larger = [w for w in works.values() if w > work and unit * w <= self.left]
            if work <= done or (done and unit * work > _PATIENCE * self.left) or larger:
                continue
            begun, seconds = monotonic(), _SHARE * self.left / self.runs
            if seconds <= 0:
                return
            inner = LipLT(self.chosen.norm, window, self.chosen.metric, seconds=seconds)
            yield inner if self.everywhere else Local(inner)
            unit, done = (monotonic() - begun) / work, work

    def _condensed(self) -> Iterator[Method]:
        if self.left <= 0 or not all(isinstance(node, Pointwise) for node in self.network.nodes):
            return
        samples = each_sample(self.region, self.network.source) or [self.region]
        spare = self.left - row_seconds(self.network, samples)
        if spare <= 0:
            return
        limit = Condensed().limit
        if self.chosen.metric.p_in == 2:
            inputs = math.prod(self.network.source)
            limit = min(limit, most_slopes(spare / len(samples), inputs, self.network.device))
        if limit > 0:
            yield Condensed(self.chosen.metric, limit=limit)
