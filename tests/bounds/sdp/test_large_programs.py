"""What large semidefinite programs take, starts from parts and steps of both sides, on small ones that are known."""

import math
import time
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from lipkit.bounds.sdp.dense_network import read
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.bounds.sdp.lipsdp import LipSDP
from lipkit.bounds.sdp.network_program import fold_point, program_of, start_point
from lipkit.bounds.sdp.primal_dual import improve_both_sides, solve
from lipkit.bounds.sdp.program import Multipliers, Program, couplings, factorise, parts_of, traces
from lipkit.linops import Dense
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Pointwise
from support.networks.random_graphs import jacobians, largest, random_network

PRECISE = InteriorPoint(rtol=1e-6)
# The solver stops 1e-6 above the optimum; two of its values differ by no more than twice that.
CLOSE = 3e-6


def mlp(depth: int, width: int = 4, seed: int = 0) -> Network:
    generator = torch.Generator().manual_seed(seed)
    return chain(
        [Dense(torch.randn(width, width, generator=generator, dtype=torch.float64)) for _ in range(depth)], RELU
    )


def residual(seed: int = 0) -> Network:
    """Three blocks y + W relu(V y), a node between them: cut there, and nowhere else."""
    generator = torch.Generator().manual_seed(seed)

    def drawn() -> Dense:
        return Dense(torch.randn(3, 3, generator=generator, dtype=torch.float64))

    blocks = {(1, 0): drawn()}
    for k in (1, 3, 5):
        blocks |= {(k + 1, k): drawn(), (k + 2, k + 1): drawn(), (k + 2, k): Dense(torch.eye(3).double())}
    return Network((3,), tuple(Pointwise(RELU, (3,)) for _ in range(6)), blocks, target=(3,))


def forms(program: Program) -> Tensor:
    """E and every Q_g as matrices."""
    return program.columns().mT.reshape(-1, program.size, program.size)


@pytest.mark.parametrize("multipliers", list(Multipliers))
def test_traces_and_couplings_are_those_of_the_matrices(multipliers: Multipliers):
    for network in (mlp(3), residual(), random_network(3)):
        program = program_of(read(network), multipliers)
        generator = torch.Generator().manual_seed(1)
        a, b = (torch.randn(program.size, program.size, generator=generator, dtype=torch.float64) for _ in range(2))
        a, b = a + a.mT, b + b.mT
        q = forms(program)
        torch.testing.assert_close(traces(program, a), torch.einsum("gij,ji->g", q, a))
        expected = torch.einsum("gij,jk,hkl,li->gh", q, a, q, b)
        torch.testing.assert_close(couplings(program, a, b), expected)
        torch.testing.assert_close(couplings(program, a, a), torch.einsum("gij,jk,hkl,li->gh", q, a, q, a))


def test_a_factor_solves():
    dense = read(mlp(5))
    program = program_of(dense, Multipliers.PER_NEURON)
    form = program.matrix(fold_point(dense, program, Multipliers.PER_NEURON))
    factor = factorise(form, parts_of(program))
    assert factor is not None
    assert len(factor.parts) > 3
    right = torch.randn(program.size, 2, dtype=torch.float64)
    # Relative to the solution: the form is well conditioned after scaling only.
    torch.testing.assert_close(form @ solve(factor, right), right, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(solve(factor, right), factor.inverse() @ right, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("multipliers", list(Multipliers))
@pytest.mark.parametrize("name", ["chain", "residual", "wide"])
def test_parts_together_are_a_feasible_start(name: str, multipliers: Multipliers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lipkit.bounds.sdp.network_program._WHOLE", 8)
    generator = torch.Generator().manual_seed(2)
    shapes = ((9, 3), (2, 9), (9, 2), (2, 9))
    network = {
        "chain": mlp(6),
        "residual": residual(),
        # A value of nine entries that two rows read: the second half is narrowed.
        "wide": chain([Dense(torch.randn(s, generator=generator, dtype=torch.float64)) for s in shapes], RELU),
    }[name]
    dense = read(network)
    program = program_of(dense, multipliers)
    start = start_point(dense, program, multipliers, PRECISE.rougher(None).find)
    assert factorise(program.matrix(start), parts_of(program)) is not None
    # Halves are solved, so that much of what the fold gives away is won already.
    assert float(start[0]) < 0.7 * float(fold_point(dense, program, multipliers)[0])


def test_without_a_cut_the_fold_is_the_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lipkit.bounds.sdp.network_program._WHOLE", 1)
    whole = residual()
    jump = Network((3,), whole.nodes, {**whole.blocks, (7, 0): Dense(torch.eye(3).double())}, target=(3,))
    dense = read(jump)
    program = program_of(dense, Multipliers.PER_NEURON)
    start = start_point(dense, program, Multipliers.PER_NEURON, PRECISE.rougher(None).find)
    assert torch.equal(start, fold_point(dense, program, Multipliers.PER_NEURON))


@pytest.mark.parametrize("multipliers", list(Multipliers))
@pytest.mark.parametrize("seed", range(2))
def test_both_sides_find_what_the_barrier_finds(seed: int, multipliers: Multipliers, monkeypatch: pytest.MonkeyPatch):
    networks = (mlp(6, seed=seed), residual(seed), random_network(seed))
    method = LipSDP(multipliers, PRECISE)
    expected = [float(method(network).value) for network in networks]
    monkeypatch.setattr("lipkit.bounds.sdp.network_program._WHOLE", 12)
    monkeypatch.setattr("lipkit.bounds.sdp.interior_point._LARGE", 0)
    assert [float(method(network).value) for network in networks] == pytest.approx(expected, rel=CLOSE)
    # An oracle that knows nothing of programs.
    assert float(method(networks[2]).value) >= largest(jacobians(networks[2]), 2.0) * (1 - 1e-12)


def test_steps_of_both_sides_reach_the_optimum_by_themselves():
    dense = read(mlp(12))
    program = program_of(dense, Multipliers.PER_NEURON)
    start = fold_point(dense, program, Multipliers.PER_NEURON)
    found = improve_both_sides(program, start, 1e-6, math.inf)
    best = InteriorPoint(rtol=1e-8).solve(program, start)
    # rho is the square of the constant.
    assert float(best[0]) * (1 - 1e-9) <= float(found.point[0]) <= float(best[0]) * (1 + 2 * CLOSE)
    assert found.mu * program.size <= 2e-6 * float(found.point[0])
    assert factorise(program.matrix(found.point), parts_of(program)) is not None


def test_no_time_is_a_start_and_still_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lipkit.bounds.sdp.network_program._WHOLE", 12)
    monkeypatch.setattr("lipkit.bounds.sdp.interior_point._LARGE", 0)
    dense = read(mlp(8))
    program = program_of(dense, Multipliers.PER_NEURON)
    start = fold_point(dense, program, Multipliers.PER_NEURON)
    assert torch.equal(improve_both_sides(program, start, 1e-6, time.monotonic() - 1).point, start)
    hurried = float(LipSDP(solver=InteriorPoint(budget=1e-9))(mlp(8)).value)
    assert hurried >= float(LipSDP()(mlp(8)).value)


def test_starts_and_steps_share_their_time(monkeypatch: pytest.MonkeyPatch):
    # A clock that ticks when it is read, once for a step: what is read is what is spent.
    clock = SimpleNamespace(now=0.0)

    def monotonic() -> float:
        clock.now += 1
        return clock.now

    monkeypatch.setattr("lipkit.bounds.sdp.network_program._WHOLE", 12)
    monkeypatch.setattr("lipkit.bounds.sdp.interior_point._LARGE", 0)
    for module in ("interior_point", "primal_dual"):
        monkeypatch.setattr(f"lipkit.bounds.sdp.{module}.monotonic", monotonic)
    network = mlp(12)
    LipSDP(solver=PRECISE)(network)
    needed, clock.now = clock.now, 0.0
    LipSDP(solver=InteriorPoint(budget=0.3 * needed))(network)
    # Every solve of a part looks at the clock a few times beyond its end: there are seven of them.
    assert clock.now <= 0.3 * needed + 30
    assert 0.3 * needed + 30 < 0.6 * needed
