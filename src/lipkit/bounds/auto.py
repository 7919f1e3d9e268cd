"""The smallest bound of several methods, and of those that a time budget allows, cheapest first."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from time import monotonic
from typing import final

import torch

from lipkit.bound import L2, Bound, Metric, Scope
from lipkit.bounds._base import Method, RegionMethod
from lipkit.bounds.fold.dag import DAG, failures
from lipkit.bounds.fold.liplt import LipLT
from lipkit.bounds.local.condensed import Condensed
from lipkit.bounds.local.jacobian_intervals import slopes_of
from lipkit.bounds.local.local import Local, each_sample
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Intervals
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.bounds.sdp.lipsdp import LipSDP
from lipkit.errors import ArgumentError, NotProvenError, TooLargeError
from lipkit.norms import Auto as AutoNorm
from lipkit.norms import Norm
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise

# Adjoints of one neuron: two for its range, three for its row, as much again for the arithmetic between them.
_ADJOINTS = 10
# Products of matrices behind the multipliers: ten in each of ten steps.
_PRODUCTS = 100
# Rows, and sides of a matrix, that are timed.
_PROBE, _SIDE = 8, 256


def row_seconds(network: Network, regions: Sequence[Region]) -> float:
    """Seconds for the ranges and rows of all neurons that intervals leave uncertain, over regions of one input each.

    Rather too much: linear relaxation leaves fewer of them, and large batches are faster than the small ones timed.
    """
    found = measure_network(network)
    with torch.no_grad():
        each, find, total = _adjoint_seconds(found), Intervals().prepare(network), 0.0
        for region in regions:
            for k, (alpha, beta) in slopes_of(found, find(region)).items():
                before = sum(seconds for at, seconds in each.items() if at <= k)
                total += _ADJOINTS * before * int((alpha < beta).sum())
    return total


def most_slopes(seconds: float, inputs: int, device: torch.device) -> int:
    """For how many uncertain slopes the multipliers are found in that time, beside so many inputs."""
    one = torch.ones(_SIDE, _SIDE, dtype=torch.float64, device=device)
    product = _fastest(lambda: (one @ one).sum().item())
    side = _SIDE * (seconds / (_PRODUCTS * product)) ** (1 / 3)
    return int(min(side / 2, side - inputs))


def _adjoint_seconds(found: MeasuredNetwork) -> dict[int, float]:
    """Seconds for the adjoint of every row, for one vector."""
    times: dict[int, float] = {}
    for k, row in found.fused.items():
        if k not in found.inside:
            y = torch.ones(_PROBE, *row.shift.shape, dtype=torch.float64, device=found.device)
            times[k] = _fastest(lambda y=y, row=row: [b.op.adjoint(y).sum().item() for b in row.blocks.values()])
    return {k: seconds / _PROBE for k, seconds in times.items()}


def _fastest(run: Callable[[], object]) -> float:
    """Seconds of the second of two runs: the first one may have to prepare something."""
    run()
    started = monotonic()
    run()
    return monotonic() - started


# Neurons up to which semidefinite bounds are tried, on the whole space and on a region, where most are linear.
_PROGRAM, _REGION = 400, 20000
# Composed maps need more iterations than the blocks that the first rung measures, by about this factor for each block.
_HARDER = 5.0
# How far a prediction from a smaller window may exceed the time left: long maps cost less than their blocks, because
# minor terms are measured loosely or not at all, and LipLT stops by itself.
_PATIENCE = 3.0
# The share of the time left that a method which stops by itself may use: some time is spent before and after it.
_SHARE = 0.9


@final
@dataclass(frozen=True)
class Auto(RegionMethod):
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
        neurons = sum(math.prod(node.shape) for node in self.network.nodes if not node.is_identity)
        # About a second for two hundred neurons, growing with their cube.
        left = self.left
        fits = left > 0 and (neurons / 200) ** 3 <= left
        # Without neurons there is nothing to multiply: LipLT has measured the one linear map.
        if self.everywhere and self.chosen.metric == L2 and 0 < neurons <= _PROGRAM and fits:
            yield LipSDP(solver=InteriorPoint(budget=_SHARE * left))
        if not self.everywhere and neurons <= _REGION:
            yield from self._condense()

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
            inner = LipLT(self.chosen.norm, window, self.chosen.metric, budget=seconds)
            yield inner if self.everywhere else Local(inner)
            unit, done = (monotonic() - begun) / work, work

    def _condense(self) -> Iterator[Method]:
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


@final
@dataclass(frozen=True)
class Best(Method):
    """The smallest of the upper bounds of several methods, with all results in `parts`.

    Guarantee: EXACT or UPPER as the winner is. A randomised winner was chosen by looking, so failures add up then.
    """

    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        if not self.methods:
            raise ArgumentError("Best needs at least one method, got none.")

    def __str__(self) -> str:
        return "best of " + ", ".join(map(str, self.methods))

    @property
    def reads_region(self) -> bool:
        """Whether all of the methods do."""
        return all(method.reads_region for method in self.methods)

    def _bound(self, network: Network, region: Region) -> Bound:
        return smallest([method(network, region) for method in self.methods])


def smallest(results: Sequence[Bound]) -> Bound:
    """The smallest upper bound, saying how it was found, with all of them in `parts`."""
    best = reduce(Bound.best, results)
    winner = min(results, key=lambda bound: float(bound.log_value.detach().sum()))
    # A random winner was chosen by looking at all of them; a deterministic one is true whatever the others drew.
    chosen = len(results) > 1 and (winner.failure > 0 or best.of is not Scope.WHOLE)
    failure = failures(results) if chosen else winner.failure
    return replace(best, method=winner.method, failure=failure, parts=tuple(results), draws=winner.draws)
