"""LipSDP against every activation pattern, published values, and solvers that lie."""

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit import Kind
from lipkit.bounds import DAG, Local, Product
from lipkit.bounds.sdp.interior_point import InteriorPoint, Solver
from lipkit.bounds.sdp.lipsdp import LipSDP
from lipkit.bounds.sdp.program import Multipliers, Program
from lipkit.errors import ArgumentError, NeedsRegion, NonFiniteError, TooLargeError, UnsupportedError
from lipkit.linops import Dense
from lipkit.regions import Ball, Box
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Identity, PiecewiseLinear, Pointwise
from support.networks.lipschitz_nets import published, trained
from support.networks.random_graphs import jacobians, largest, random_network, reference_network
from support.networks.slope_chains import BELOW, all_corners, random_chain

NEURON, LAYER = LipSDP(), LipSDP(Multipliers.PER_LAYER)
SEEDS = st.integers(0, 10**9)


def value(method: LipSDP, network: Network) -> float:
    return float(method(network).value)


def test_reference_values_of_the_survey_network():
    network = reference_network()
    # Six digits are printed.
    assert value(NEURON, network) == pytest.approx(1.885111, abs=1e-6)
    assert value(LAYER, network) == pytest.approx(1.978262, abs=1e-6)
    assert value(NEURON, network) >= largest(jacobians(network), 2.0)


@pytest.mark.parametrize("name", ["fnn2_seed0", "fnn3_seed0", "fnn2_seed3", "fnn3_seed4"])
def test_published_values_of_one_logit(name: str):
    found = value(NEURON, trained(name, logit=7))
    # Their solver stops at 1e-8; ours at 1e-6 above the optimum, and never below it by more than theirs.
    assert found == pytest.approx(published(name)["LipSDP"], rel=3e-6)
    assert found >= published(name)["LipSDP"] * (1 - 1e-7)
    assert published(name)["lb"] < found < published(name)["LT"]


@pytest.mark.parametrize(
    ("name", "neuron", "layer"),
    [
        ("fnn2_seed0", 7.88150, 7.99902),
        ("fnn3_seed0", 15.58140, 16.59727),
        ("lipsdp_mnist", 24.36635, 26.25597),
        ("lipsdp_random", 36.48223, 39.83862),
    ],
)
def test_independent_values_of_all_outputs(name: str, neuron: float, layer: float):
    network = trained(name)
    # Seven digits are given.
    assert value(NEURON, network) == pytest.approx(neuron, rel=1e-6)
    assert value(LAYER, network) == pytest.approx(layer, rel=1e-6)


def test_value_never_falls_below_a_constant_that_is_attained():
    # The true constant of this net is its LipSDP value; a solver at loose tolerance is known to return 36.233.
    network = trained("lipsdp_random")
    for rtol in (1e-6, 1e-2, 0.3):
        assert value(LipSDP(solver=InteriorPoint(rtol=rtol)), network) >= 36.482229


@settings(max_examples=8)
@given(SEEDS, st.sampled_from([torch.float32, torch.float64]))
def test_dominates_every_pattern_of_any_graph_and_is_ordered(seed: int, dtype: torch.dtype):
    network = random_network(seed, neurons=7, dtype=dtype)
    truth = largest(jacobians(network), 2.0)
    neuron, layer = NEURON(network), LAYER(network)
    assert neuron.kind is layer.kind is Kind.UPPER
    assert float(neuron.value) >= truth * BELOW
    # The solver stops within 1e-6 of the optimum.
    assert float(neuron.value) <= float(layer.value) * (1 + 2e-6)
    assert float(layer.value) <= float(DAG()(network).value) * (1 + 2e-6)


@settings(max_examples=8)
@given(SEEDS)
def test_dominates_every_pattern_of_any_slopes(seed: int):
    network, matrices, slopes = random_chain(seed)
    truth = all_corners(matrices, slopes)
    assert value(NEURON, network) >= truth * BELOW
    assert value(LAYER, network) >= truth * BELOW


@settings(max_examples=4)
@given(SEEDS, st.sampled_from([1, 2]))
def test_parts_multiply_to_a_looser_bound(seed: int, split: int):
    network, _, _ = random_chain(seed)
    whole, parts = NEURON(network), LipSDP(split=split)(network)
    assert float(parts.value) >= float(whole.value) * (1 - 2e-6)
    assert len(parts.parts) == math.ceil((len(network.nodes) + 1) / (split + 1))
    # Each part is at most the product of its norms, up to the solver's 1e-6.
    assert float(parts.value) <= float(Product()(network).value) * (1 + 1e-5)


def test_one_slope_gives_the_spectral_norm():
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(n, m, generator=generator, dtype=torch.float64) for m, n in ((5, 7), (7, 4), (4, 6))]
    network = chain([Dense(w) for w in weights], Identity())
    truth = float(torch.linalg.matrix_norm(weights[2] @ weights[1] @ weights[0], 2))
    # No multipliers are left, only rounding.
    assert value(NEURON, network) == pytest.approx(truth, rel=1e-11)
    assert value(NEURON, network) >= truth * BELOW


@pytest.mark.parametrize("factors", [(3.0, 1.0, 1.0), (1e40, 1e-30, 1e25), (1e-150, 1e-100, 1e-60), (1e150, 1e90, 1.0)])
def test_scales_with_the_weights(factors: tuple[float, float, float]):
    network = reference_network()
    scaled = Network(
        network.source,
        network.nodes,
        {at: Dense(op.weight * factors[at[1]]) for at, op in network.blocks.items() if isinstance(op, Dense)},
        target=network.target,
    )
    shift = float(NEURON(scaled).log_value) - float(NEURON(network).log_value)
    # Scaling by other numbers than powers of two rounds the weights and moves the solver's path a little.
    assert shift == pytest.approx(sum(map(math.log, factors)), abs=2e-6)


def test_wide_inputs_are_rotated_to_their_rank():
    generator = torch.Generator().manual_seed(1)
    narrow = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    last = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(300, 4, generator=generator, dtype=torch.float64))[0]
    wide = narrow @ rotation.mT
    found = [value(NEURON, chain([Dense(first), Dense(last)], RELU)) for first in (narrow, wide)]
    # The rotation is orthonormal to 1e-15; the solver's two paths end within 1e-6 of one optimum.
    assert found[1] == pytest.approx(found[0], rel=2e-6)
    twice = torch.cat([wide, wide])
    assert value(NEURON, chain([Dense(twice), Dense(torch.cat([last, last], 1))], RELU)) >= found[1] * (2 - 2e-6)


def test_neurons_that_never_move_or_never_count():
    generator = torch.Generator().manual_seed(2)
    first, last = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((5, 3), (2, 5)))
    first[1] = 0
    last[:, 3] = 0
    kept = [0, 2, 4]
    small = value(NEURON, chain([Dense(first[kept]), Dense(last[:, kept])], RELU))
    assert value(NEURON, chain([Dense(first), Dense(last)], RELU)) == pytest.approx(small, rel=2e-6)


def test_constant_networks_have_constant_zero():
    zero = torch.zeros(3, 3, dtype=torch.float64)
    some = torch.eye(3, dtype=torch.float64)
    assert value(NEURON, chain([Dense(zero), Dense(some)], RELU)) == 0.0
    nothing = Network((3,), (Pointwise(RELU, (2,)),), {}, {2: torch.ones(3)}, target=(3,))
    assert value(NEURON, nothing) == 0.0
    assert value(LipSDP(split=1), nothing) == 0.0


@pytest.mark.parametrize("method", [NEURON, LAYER])
def test_a_row_that_is_off_on_the_region_cuts_what_lies_before_it(method: LipSDP):
    generator = torch.Generator().manual_seed(4)
    first, second, last, skip = (
        torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((3, 2), (4, 3), (2, 4), (2, 2))
    )
    # The first row has uncertain neurons, the second only ones that are off: no multiplier of the first one counts.
    biases = [None, torch.full((4,), -100.0, dtype=torch.float64), None]
    network = chain([Dense(first), Dense(second), Dense(last)], RELU, biases)
    region = Box(-torch.ones(2), torch.ones(2))
    assert float(Local(method)(network, region).value) == 0.0
    around = replace(network, blocks={**network.blocks, (3, 0): Dense(skip)})
    # What is left is one matrix, to the tolerance of the solver.
    truth = float(torch.linalg.matrix_norm(skip, 2))
    assert float(Local(method)(around, region).value) == pytest.approx(truth, rel=2e-6)


def test_deep_networks_keep_their_digits():
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(24)]
    network = chain([Dense(w) for w in weights], RELU)
    bound = LipSDP(solver=InteriorPoint(rtol=1e-4))(network)
    product = sum(math.log(float(torch.linalg.matrix_norm(w, 2))) for w in weights)
    # On this depth the product is loose by orders of magnitude; the proof must survive that range of multipliers.
    assert float(bound.log_value) < product - 8
    for _ in range(500):
        found = weights[0]
        for w in weights[1:]:
            found = w @ torch.where(torch.rand(6, 1, generator=generator) < 0.8, found, 0.0)
        assert float(bound.log_value) >= math.log(float(torch.linalg.matrix_norm(found, 2)) + 1e-300)


def test_region_is_the_one_asked_for():
    region = Ball(torch.zeros(2), 1.0)
    assert NEURON(reference_network(), region).region == region
    assert LipSDP(split=1)(reference_network(), region).region == region


@final
@dataclass(frozen=True)
class Liar(Solver):
    """Gives a multiple of the optimum, or nonsense."""

    factor: float

    def solve(self, program: Program, start: Tensor) -> Tensor:
        return InteriorPoint().solve(program, start) * self.factor


@pytest.mark.parametrize("factor", [0.0, 0.5, 1 - 1e-9, -1.0, 1e9, math.nan, math.inf])
def test_what_a_solver_says_is_never_trusted(factor: float):
    for network in (reference_network(), random_network(3), random_network(26)):
        truth = largest(jacobians(network), 2.0)
        found = value(LipSDP(solver=Liar(factor)), network)
        assert truth * BELOW <= found <= 3 * float(DAG()(network).value)


def test_coupled_multipliers_would_be_unsound():
    # f(x) = relu(x) - relu(x - 1) has slope 1 on (0, 1). With T = t (e_1 - e_2)(e_1 - e_2)* the inequality of the
    # original paper, [[-rho, W0* T], [T W0, -2 T + W1* W1]] <= 0 for slopes in [0, 1], holds with rho = 0.
    first, last, difference = np.ones((2, 1)), np.array([[1.0, -1.0]]), np.array([[1.0], [-1.0]])
    coupled = 0.5 * difference @ difference.T
    matrix = np.block([[np.zeros((1, 1)), first.T @ coupled], [coupled @ first, -2 * coupled + last.T @ last]])
    assert np.linalg.eigvalsh(matrix).max() <= 1e-15
    network = chain([Dense(torch.from_numpy(first)), Dense(torch.from_numpy(last))], RELU)
    assert value(NEURON, network) >= 1.0


def test_refusals():
    with pytest.raises(ArgumentError, match="rtol"):
        InteriorPoint(rtol=0.0)
    with pytest.raises(ArgumentError, match="split"):
        LipSDP(split=0)
    huge = chain([Dense(torch.zeros(7000, 1)), Dense(torch.zeros(1, 7000))], RELU)
    huge = Network(
        huge.source, huge.nodes, {(1, 0): Dense(torch.ones(7000, 1)), (2, 1): Dense(torch.ones(1, 7000))}, target=(1,)
    )
    # One layer that is too wide by itself cannot be cut.
    with pytest.raises(TooLargeError, match=r"7001 variables .* limit is 6000; use LipLT\(\) or Auto"):
        NEURON(huge)
    square = PiecewiseLinear("vertical", lambda z: z, (), (math.inf,))
    with pytest.raises(NeedsRegion):
        NEURON(chain([Dense(torch.ones(1, 1)), Dense(torch.ones(1, 1))], square))
    with pytest.raises(UnsupportedError, match="complex"):
        NEURON(chain([Dense(torch.ones(1, 1, dtype=torch.complex128))], RELU))
    with pytest.raises(NonFiniteError):
        NEURON(chain([Dense(torch.full((1, 1), math.nan))], RELU))
