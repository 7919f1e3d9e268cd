"""The ladder within a budget, on a clock that only moves when a norm is measured: no machine is timed."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lipkit
from lipkit.bound import Bound
from lipkit.bounds import DAG, Auto, Condensed, LipLT, LipSDP, Local
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.linops import Dense, LinearOperator, StatedRounding
from lipkit.norms import SVD, AbsoluteSums, Norm
from lipkit.regions import Ball
from lipkit.trace import Network, chain
from lipkit.trace.capture import capture
from lipkit.trace.nodes import RELU
from support.networks.random_graphs import jacobians, largest

DEPTH, WIDTH = 10, 12


@final
@dataclass(eq=False)
class Clock:
    """Seconds, moved by hand."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@final
@dataclass(frozen=True)
class Slow(Norm):
    """Decompositions for which a matrix takes `block` seconds and a composed map `composed`."""

    clock: Clock
    block: float
    composed: float
    seen: list[float] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        for op in ops:
            cost = self.composed if isinstance(op, StatedRounding) else self.block
            self.clock.now += cost
            self.seen.append(cost)
        return SVD().many(ops)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("auto", "fold.liplt", "sdp.interior_point"):
        monkeypatch.setattr(f"lipkit.bounds.{module}.monotonic", made)
    monkeypatch.setattr("lipkit._runtime.monotonic", made)
    return made


def network(depth: int = DEPTH, width: int = WIDTH) -> Network:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(width, width, generator=generator, dtype=torch.float64) for _ in range(depth)]
    return chain([Dense(w) for w in weights], RELU)


@pytest.mark.parametrize("composed", [0.1, 2.0, 30.0])
def test_overruns_by_one_norm_at_most(clock: Clock, composed: float):
    norm = Slow(clock, 0.1, composed)
    bound = Auto(budget=60, norm=norm)(network())
    assert clock.now <= 60 + composed
    # The blocks, once for the fold and once for each window, tell nothing of what composed maps cost.
    assert norm.seen.count(composed) > 0
    assert float(bound.log_value) <= float(DAG(SVD())(network()).log_value) + 1e-9


def test_a_norm_as_cheap_as_predicted_gives_everything_at_once(clock: Clock):
    parts = Auto(budget=60, norm=Slow(clock, 0.1, 0.1))(network()).parts
    windows = [part.method.window for part in parts if isinstance(part.method, LipLT)]
    assert windows == [None]
    assert [type(part.method) for part in parts] == [DAG, LipLT, LipSDP]


def test_a_larger_window_is_predicted_from_the_smaller_one(clock: Clock):
    # Five times the fold would not let any but the smallest window begin; it then turns out to be as fast as the fold.
    parts = Auto(budget=60, norm=Slow(clock, 1.0, 0.05))(network()).parts
    windows = [part.method.window for part in parts if isinstance(part.method, LipLT)]
    assert windows[0] == 2
    assert len(windows) > 1


def test_a_fold_that_takes_too_long_is_replaced_by_closed_forms(clock: Clock):
    norm = Slow(clock, 10.0, 10.0)
    found = Auto(budget=60, norm=norm)(network())
    assert len(norm.seen) <= DEPTH
    assert found.method == DAG(AbsoluteSums())
    assert "sums of absolute values" in found.note


def test_a_capture_that_takes_all_the_time_leaves_enough_for_cheap_norms(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    def late(model: Network, *_: object) -> Network:
        clock.now += 100
        return model

    monkeypatch.setattr("lipkit.bounds.lipschitz.network_of", late)
    found = lipkit.lipschitz(network(), method=Auto(budget=60, norm=Slow(clock, 0.01, 100.0)))
    assert float(found.log_value) <= float(DAG(SVD())(network()).log_value) + 1e-9
    # 15 % of the budget, and one norm that began within it.
    assert clock.now <= 100 + 9 + 100


def test_on_a_region_both_runs_of_the_inner_method_count(clock: Clock):
    norm = Slow(clock, 0.05, 5.0)
    region = Ball(torch.zeros(WIDTH, dtype=torch.float64), 0.1)
    Auto(budget=60, norm=norm)(network(), region)
    # Each of the two runs, everywhere and on the ball, may end one norm late.
    assert clock.now <= 60 + 2 * 5.0
    assert norm.seen.count(5.0) > 0


def test_condensed_is_left_out_where_its_rows_would_take_too_long(monkeypatch: pytest.MonkeyPatch):
    region, small = Ball(torch.zeros(WIDTH, dtype=torch.float64), 0.1), network(3)
    for expected, methods in ((1e9, [Local, Local]), (0.0, [Local, Local, Condensed])):
        monkeypatch.setattr("lipkit.bounds.auto.row_seconds", lambda *_, expected=expected: expected)
        found = Auto(budget=60)(small, region)
        assert [type(part.method) for part in found.parts] == methods
    # With no time left for multipliers, no slope may be uncertain, and here some are.
    monkeypatch.setattr("lipkit.bounds.auto.most_slopes", lambda *_: 1)
    assert [type(part.method) for part in Auto(budget=60)(small, region).parts] == [Local, Local]


@pytest.mark.parametrize("budget", [4.0, 5.0, 6.0, 10.0])
def test_planning_may_use_up_the_budget(monkeypatch: pytest.MonkeyPatch, budget: float):
    # A clock that moves whenever it is read, so that no time is left for what a look before it found time for.
    tick = map(float, itertools.count()).__next__
    monkeypatch.setattr("lipkit.bounds.auto.monotonic", tick)
    monkeypatch.setattr("lipkit._runtime.monotonic", tick)
    small = network(4, 2)
    assert float(Auto(budget=budget, norm=SVD())(small).value) >= largest(jacobians(small), 2.0)


def test_liplt_without_time_is_the_fold_and_true(clock: Clock):
    small = network(4, 2)
    truth = largest(jacobians(small), 2.0)
    plain = float(LipLT(SVD())(small).value)
    found = LipLT(Slow(clock, 1.0, 1.0), budget=0.5)(small)
    assert plain < float(found.value)
    assert float(found.value) == pytest.approx(float(DAG(SVD())(small).value), rel=1e-9)
    assert float(found.value) >= truth
    # Enough for the blocks and three more of the six norms of composed maps.
    some = LipLT(Slow(clock, 1.0, 1.0), negligible=0.0, budget=6.5)(small)
    assert plain < float(some.value) < float(found.value)


class Beside(nn.Module):
    """x -> (10^-3 relu(x), f(x)) with f of slopes 1 and -1/2: the constant is that of f, up to 10^-6."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([functional.relu(1e-3 * x), functional.leaky_relu(x, -0.5)], 1)


@pytest.mark.parametrize("measured", [2, 3])
def test_a_term_left_unmeasured_may_write_anywhere(monkeypatch: pytest.MonkeyPatch, measured: int):
    # Maps that are applied, not written out, know which outputs they write to.
    monkeypatch.setattr("lipkit.bounds.fold.liplt._DENSE", 0)
    clock = itertools.chain([0.0] * (1 + measured), itertools.repeat(2.0))
    monkeypatch.setattr("lipkit.bounds.fold.liplt.monotonic", lambda: next(clock))
    found = LipLT(SVD(), budget=1.0)(capture(Beside(), torch.zeros(1, 1)))
    assert float(found.value) >= 1


def test_an_interior_point_method_without_time_proves_its_start(monkeypatch: pytest.MonkeyPatch):
    small = network(3, 2)
    monkeypatch.setattr("lipkit.bounds.sdp.interior_point.monotonic", lambda: math.exp(next(ticks)))
    ticks = iter(range(100))
    hurried = float(LipSDP(solver=InteriorPoint(budget=1.0))(small).value)
    # Twice for the start and twice for the solver, which looks at the clock before its first step.
    assert next(ticks) == 4
    assert hurried > float(LipSDP()(small).value)
    assert hurried >= largest(jacobians(small), 2.0)
