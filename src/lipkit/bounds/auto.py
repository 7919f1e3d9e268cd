"""The smallest bound of several methods, and of those that a time budget allows, cheapest first."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from time import monotonic
from typing import final

import torch

from lipkit._deadline import no_time_limit, seconds_left, time_limit
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
from lipkit.norms import Mixed, Norm
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


# Forward passes that the norms of all blocks take about as long as: at most a few hundred steps for each.
_PASSES = 1000
# Norms in closed form, (||A||_1 ||A||_inf)^(1/2), and how much larger than usual the excess of hasty ones may be.
_CLOSED, _LOOSE = Mixed(2.0, 2.0), 25.0
# Neurons up to which semidefinite bounds are tried, on the whole space and on a region, where most are linear.
_PROGRAM, _REGION = 400, 20000
# Composed maps need more iterations than the blocks that the first rung measures, by about this factor for each block.
_HARDER = 5.0
# How far a prediction from a smaller window may exceed the time left: long maps cost less than their blocks, because
# minor terms are measured loosely or not at all, and LipLT stops by itself.
_PATIENCE = 3.0
# The share of the time left that a method which stops by itself may use: some time is spent before and after it.
_SHARE = 0.9
# The share of the budget that the methods have in any case: the first export of a process takes seconds, and closed
# forms in place of norms that take milliseconds are many times larger.
_LEAST = 0.25


@final
@dataclass(frozen=True)
class Auto(RegionMethod):
    """Runs a ladder of methods, cheapest first, while the predicted time of the next one fits into `budget` seconds:

        everywhere    the fold, LipLT with the largest window that fits, LipSDP up to 400 neurons;
        on a region   the same through `Local`, and `Condensed` up to 20,000 neurons.

    Where the norms of the fold may take longer than the budget, a fold with norms of up to a quarter of excess comes
    first; if not even that ends in time, the fold with norms in closed form is the answer. LipLT is predicted from the
    time of the fold and from the number of blocks that one application of each map passes; once a window has run, a
    larger one is predicted from the time of that. LipLT and LipSDP stop by themselves when what is left of the budget
    is spent, and keep what they have.
    `Condensed` is predicted from the neurons that intervals leave uncertain, and limited to as many slopes as there is
    time for. If capturing the model took most of the budget, the methods still have a quarter of it. A method that
    refuses a network as too large, or cannot prove anything, is left out. All results are in `parts`.

    Guarantee: EXACT or UPPER, as the best rung's is. Cost: the budget, or a quarter of it after a capture that took
    longer, and beyond it at most one chunk of a norm, or one step and the proof of a semidefinite program, or what
    `Condensed` was underestimated by; on a region also the ranges of all values.
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
        seconds = max(min(self.budget, seconds_left()), _LEAST * self.budget)
        with no_time_limit(), time_limit(seconds):
            ladder, results = _Ladder(self, network, region), []
            for method in ladder.methods():
                try:
                    results.append(method(network, region))
                except (TooLargeError, NotProvenError):
                    continue
        if results:
            return smallest(results)
        with no_time_limit():
            return ladder.fold(_CLOSED if self.metric == L2 else self.norm)(network, region)


@final
@dataclass(frozen=True, eq=False)
class _Ladder:
    """The rungs for one network and region; each is offered when the one before has run."""

    chosen: Auto
    network: Network
    region: Region

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

    def fold(self, norm: Norm) -> Method:
        fold = DAG(norm, metric=self.chosen.metric)
        return fold if self.everywhere else Local(fold)

    def methods(self) -> Iterator[Method]:
        """The rungs, cheapest first."""
        if self.everywhere and self.chosen.metric == L2 and _PASSES * self._pass_seconds() > seconds_left():
            yield DAG(self.chosen.norm.loosened(_LOOSE))
        begun = monotonic()
        yield self.fold(self.chosen.norm)
        yield from self._windows(monotonic() - begun)
        neurons = sum(math.prod(node.shape) for node in self.network.nodes if not node.is_identity)
        # About a second for two hundred neurons, growing with their cube.
        left = seconds_left()
        fits = left > 0 and (neurons / 200) ** 3 <= left
        # Without neurons there is nothing to multiply: LipLT has measured the one linear map.
        if self.everywhere and self.chosen.metric == L2 and 0 < neurons <= _PROGRAM and fits:
            yield LipSDP(solver=InteriorPoint(budget=_SHARE * left))
        if not self.everywhere and neurons <= _REGION:
            yield from self._condense()

    def _pass_seconds(self) -> float:
        """Seconds for one sample through the network, forward."""
        x = torch.zeros(1, *self.network.source, dtype=torch.float64, device=self.network.device)
        with torch.no_grad():
            return _fastest(lambda: self.network.to(torch.float64)(x).sum().item())

    def _windows(self, first: float) -> Iterator[Method]:
        # LipLT measures the blocks by themselves first, as the fold did.
        if first >= seconds_left():
            return
        blocks = len(DAG().fused(self.network).blocks)
        unit, done = _HARDER * first / max(1, blocks), 0
        works = {window: LipLT(window=window).work(self.network) for window in (2, 6, None)}
        for window, work in works.items():
            larger = [w for w in works.values() if w > work and unit * w <= seconds_left()]
            if work <= done or (done and unit * work > _PATIENCE * seconds_left()) or larger:
                continue
            begun, seconds = monotonic(), _SHARE * seconds_left() / self.runs
            if seconds <= 0:
                return
            inner = LipLT(self.chosen.norm, window, self.chosen.metric, budget=seconds)
            yield inner if self.everywhere else Local(inner)
            unit, done = (monotonic() - begun) / work, work

    def _condense(self) -> Iterator[Method]:
        if seconds_left() <= 0 or not all(isinstance(node, Pointwise) for node in self.network.nodes):
            return
        samples = each_sample(self.region, self.network.source) or [self.region]
        spare = seconds_left() - row_seconds(self.network, samples)
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
