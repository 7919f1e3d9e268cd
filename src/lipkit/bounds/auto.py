"""The smallest bound of several methods: of those that are given, or of those that a time budget allows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from time import monotonic
from typing import final

from lipkit._runtime import Phase, no_time_limit, report, seconds_left, time_limit
from lipkit.bound import L2, Bound, Metric, Scope
from lipkit.bounds._base import Method, RegionMethod
from lipkit.bounds.fold.dag import DAG, failures
from lipkit.bounds.fold.liplt import LipLT
from lipkit.bounds.local.condensed import Condensed
from lipkit.bounds.local.linearization import Linearization
from lipkit.bounds.local.local import Local, each_sample
from lipkit.bounds.local.measured_network import measuring_once
from lipkit.bounds.predicted_times import most_slopes, row_seconds
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.bounds.sdp.lipsdp import LipSDP
from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, OutOfTimeError, TooLargeError
from lipkit.norms import AbsoluteSums, InTime, Norm
from lipkit.norms import Auto as AutoNorm
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise

# Runs of the fold by sums that the fold by norms takes as long as, at most: each norm is some hundred applications.
_RUNS = 200
# Entries before and after all operators up to which the norms of the fold need no answer before them, and the seconds
# that must be left: an operator is a matrix of 1,000 x 1,000 at most, whose decomposition takes less than that.
_SMALL, _MOMENT = 2000, 2.0
# The share of the time that the fold by sums may use for the ranges of values on a region.
_RANGES = 0.5
# How much larger than usual the excess of hasty norms may be.
_LOOSE = 25.0
# Neurons up to which semidefinite bounds are tried, on the whole space and on a region, where most are linear.
_PROGRAM, _REGION = 400, 20000
# Composed maps need more iterations than the blocks that the first rung measures, by about this factor for each block.
_HARDER = 5.0
# How far a prediction from a smaller window may exceed the time left: long maps cost less than their blocks, because
# minor terms are measured loosely or not at all, and LipLT stops by itself.
_PATIENCE = 3.0
# The share of the time left that a method which stops by itself may use: some time is spent before and after it.
_SHARE = 0.9
# The share of the time left for the derivative at the center: on small balls it is far below LipLT, and it has nothing
# to show before it ends.
_LINEAR = 0.75
# The share of the budget that the methods have in any case: the first export of a process takes seconds, and sums of
# absolute values in place of norms that take milliseconds are many times larger.
_LEAST = 0.15


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


@final
@dataclass(frozen=True)
class Auto(RegionMethod):
    """Runs a ladder of methods, cheapest first, while the predicted time of the next one fits into `budget` seconds:

        everywhere    the fold, LipLT with the largest window that fits, LipSDP up to 400 neurons;
        on a region   the same through `Local`, and `Condensed` up to 20,000 neurons, or `Linearization` in l2 where
                      nodes act on several entries (attention, normalisation, products).

    Before all of these, unless the network is small, comes a fold by sums of absolute values (`norms.AbsoluteSums`):
    the answer if nothing else ends in time. Where the norms of the fold may take longer than the budget, a fold with
    norms of up to a quarter of excess is next, in which layers that there is no time for are measured by sums. LipLT is
    predicted from the time of the fold and from the number of blocks that one application of each map passes; once a
    window has run, a larger one is predicted from the time of that. LipLT and LipSDP stop by themselves when what is
    left of the budget is spent, and keep what they have. `Condensed` is predicted from the neurons that intervals leave
    uncertain, and limited to as many slopes as there is time for. If capturing the model took most of the budget, the
    methods still have 15 % of it.
    A method that refuses a network as too large, or cannot prove anything, is left out. All results are in `parts`, and
    `note` says which methods the budget cut short or left out.

    Guarantee: EXACT or UPPER, as the best rung's is. Cost: the budget, or 15 % of it after a capture that took longer,
    and beyond it the fold by sums, two applications of every operator, if that takes longer; or one step and the proof
    of a semidefinite program, or what `Condensed` was underestimated by.
    """

    budget: float = 60.0
    norm: Norm = AutoNorm()
    metric: Metric = L2

    def __post_init__(self) -> None:
        if not isinstance(self.budget, int | float) or not self.budget > 0:
            raise ArgumentError(f"Auto.budget is a number of seconds > 0, got {self.budget!r}.")

    def __str__(self) -> str:
        return f"the best within {self.budget:g} s"

    def _bound(self, network: Network, region: Region) -> Bound:
        seconds = max(min(self.budget, seconds_left()), _LEAST * self.budget)
        with no_time_limit(), time_limit(seconds), measuring_once():
            ladder = _Ladder(self, network, region)
            begun = monotonic()
            reserve, results = ladder.fold_by_sums(), list[Bound]()
            for method in ladder.methods(monotonic() - begun):
                report(Phase.BOUND, method)
                try:
                    results.append(method(network, region))
                except OutOfTimeError:
                    ladder.unfinished.append(str(method))
                except (TooLargeError, NotProvenError):
                    continue
        if results or reserve is not None:
            found = smallest(results or [reserve] if reserve is not None else results)
            return replace(found, note=self._note(ladder, by_sums=not results))
        with no_time_limit():
            return ladder.fold(self.norm)(network, region)

    def _note(self, ladder: "_Ladder", by_sums: bool) -> str:
        """Why more time may give a smaller bound, in a sentence; nothing if the ladder came to its end."""
        if not ladder.unfinished:
            return ""
        what = "; ".join(dict.fromkeys(ladder.unfinished))
        instead = ", so layers were measured by sums of absolute values" if by_sums else ""
        return (
            f"The budget of {self.budget:g} s was over before these ended: {what}{instead}. "
            "A larger budget may give a smaller bound."
        )


@final
@dataclass(frozen=True, eq=False)
class _Ladder:
    """The rungs for one network and region; each is offered when the one before has run.

    `unfinished` are those that the time did not suffice for, in words.
    """

    chosen: Auto
    network: Network
    region: Region
    unfinished: list[str] = field(default_factory=list)

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

    def fold_by_sums(self) -> Bound | None:
        """The answer if nothing else ends in time; None in norms that are sums anyway, and where norms take no time."""
        if self.chosen.metric != L2 or (self._is_small() and seconds_left() > _MOMENT):
            return None
        method = self.fold(AbsoluteSums())
        report(Phase.BOUND, method)
        try:
            try:
                with time_limit(_RANGES * seconds_left()):
                    return method(self.network, self.region)
            except OutOfTimeError:
                # An operator that can only be applied, whose entries have to be formed.
                with no_time_limit():
                    return method(self.network, self.region)
        except (NonFiniteError, NotProvenError, TooLargeError):
            return None

    def _is_small(self) -> bool:
        """Whether every norm of the fold takes milliseconds, whatever the operators are."""
        sizes = (math.prod(op.in_shape) + math.prod(op.out_shape) for op in self.network.blocks.values())
        return self.everywhere and self.chosen.norm == AutoNorm() and sum(sizes) <= _SMALL

    def methods(self, quick: float) -> Iterator[Method]:
        """The rungs, cheapest first; `quick` are the seconds that the fold by sums took."""
        if self.chosen.metric == L2 and 0 < seconds_left() < _RUNS * quick:
            yield self.fold(InTime(self.chosen.norm.loosened(_LOOSE)))
            if seconds_left() <= 0:
                self.unfinished.append("the norms of all layers")
        begun = monotonic()
        yield self.fold(self.chosen.norm)
        first = monotonic() - begun
        yield from self._linearize()
        yield from self._windows(first)
        neurons = sum(math.prod(node.shape) for node in self.network.nodes if not node.is_identity)
        # Without neurons there is nothing to multiply: LipLT has measured the one linear map.
        if self.everywhere and self.chosen.metric == L2 and 0 < neurons <= _PROGRAM:
            yield from self._program(neurons)
        if not self.everywhere and neurons <= _REGION:
            yield from self._condense()

    def _program(self, neurons: int) -> Iterator[Method]:
        left = seconds_left()
        # About a second for two hundred neurons, growing with their cube.
        if left > 0 and (neurons / 200) ** 3 <= left:
            yield LipSDP(solver=InteriorPoint(budget=_SHARE * left))
        else:
            self.unfinished.append(str(LipSDP()))

    def _windows(self, first: float) -> Iterator[Method]:
        # LipLT measures the blocks by themselves first, as the fold did.
        if first >= seconds_left():
            self.unfinished.append(str(LipLT()))
            return
        blocks = len(DAG().fused(self.network).blocks)
        unit, done = _HARDER * first / max(1, blocks), 0
        works = {window: LipLT(window=window).work(self.network) for window in (2, 6, None)}
        for window, work in works.items():
            larger = [w for w in works.values() if w > work and unit * w <= seconds_left()]
            if work <= done or larger:
                continue
            begun, seconds = monotonic(), _SHARE * seconds_left() / self.runs
            if seconds <= 0 or (done and unit * work > _PATIENCE * seconds_left()):
                self.unfinished.append(str(LipLT(window=window)))
                return
            inner = LipLT(self.chosen.norm, window, self.chosen.metric, budget=seconds)
            yield inner if self.everywhere else Local(inner)
            unit, done = (monotonic() - begun) / work, work
            if monotonic() - begun >= seconds:
                self.unfinished.append(f"some of the norms of {LipLT(window=window)}")

    def _linearize(self) -> Iterator[Method]:
        """Where nodes act on several entries; networks of single ones have `Condensed`."""
        left = seconds_left()
        joint = any(not isinstance(node, Pointwise) for node in self.network.nodes)
        if not joint or self.everywhere or self.chosen.metric != L2:
            return
        if left > 0:
            yield Linearization(budget=_LINEAR * left)
        else:
            self.unfinished.append(str(Linearization()))

    def _condense(self) -> Iterator[Method]:
        if not all(isinstance(node, Pointwise) for node in self.network.nodes):
            return
        samples = each_sample(self.region, self.network.source) or [self.region]
        spare = seconds_left() - row_seconds(self.network, samples) if seconds_left() > 0 else 0.0
        limit = Condensed().limit
        if spare > 0 and self.chosen.metric.p_in == 2:
            inputs = math.prod(self.network.source)
            limit = min(limit, most_slopes(spare / len(samples), inputs, self.network.device))
        if spare > 0 and limit > 0:
            yield Condensed(self.chosen.metric, limit=limit)
        else:
            self.unfinished.append(str(Condensed(self.chosen.metric)))
