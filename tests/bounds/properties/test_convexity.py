"""Convexity of networks: proofs checked by sampling, counter-examples by exact arithmetic."""

import math
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit.bounds.lower.search_lines import CounterexampleSearch
from lipkit.bounds.properties.convexity import is_convex
from lipkit.bounds.properties.verdict import ProofAnswer
from lipkit.errors import ArgumentError, KindError, NonFiniteError
from lipkit.linops import Dense, Index, LinearOperator
from lipkit.regions import Ball, Box, Everywhere
from lipkit.trace import Network, Origin, chain
from lipkit.trace.nodes import RELU, Activation, Node, Pointwise
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.powers import EXP, SQUARE
from lipkit.trace.nodes.activations.sigmoids import LOGSIGMOID, SIGMOID, TANH, softplus
from lipkit.trace.nodes.attention.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.pointwise import ABS, clamp, leaky_relu
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.nodes.window_maxima import WindowMax
from support.networks.rational_networks import evaluated, rational
from support.unchecked import unchecked

QUIET = CounterexampleSearch(lines=0)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def author() -> Network:
    """f(x, y) = relu([x, y] . [1, 2]) - 2."""
    first, last = Dense(torch.tensor([[1.0, 2.0]]).double()), Dense(torch.ones(1, 1).double())
    blocks = {(1, 0): first, (2, 1): last}
    return Network((2,), (Pointwise(RELU, (1,)),), blocks, {2: torch.tensor([-2.0]).double()}, target=(1,))


def icnn(seed: int, activation: Activation, dim: int = 4, width: int = 6, depth: int = 3) -> Network:
    """z_(i+1) = g(W_i z_i + A_i x + b_i) with W_i >= 0."""
    nodes: list[Node] = [Pointwise(activation, (width,)) for _ in range(depth)]
    blocks: dict[tuple[int, int], LinearOperator] = {}
    for k in range(1, depth + 2):
        rows = width if k <= depth else 2
        blocks[k, 0] = Dense(noise(100 * seed + k, rows, dim))
        if k > 1:
            blocks[k, k - 1] = Dense(noise(100 * seed + 50 + k, rows, width).abs())
    biases = {k: noise(100 * seed + 80 + k, width) for k in range(1, depth + 1)}
    return Network((dim,), tuple(nodes), blocks, biases, target=(2,))


def mlp(seed: int, activation: Activation, dim: int = 3) -> Network:
    shapes = [(8, dim), (8, 8), (2, 8)]
    operators = [Dense(noise(seed + i, *shape)) for i, shape in enumerate(shapes)]
    return chain(operators, activation, [noise(seed + 10, 8), noise(seed + 11, 8), None])


def assert_midpoints(network: Network, scale: float, center: Tensor | None = None) -> None:
    x, y = (scale * noise(s, 500, *network.source) for s in (1, 2))
    if center is not None:
        x, y = x + center, y + center
    values = [network(p) for p in (x, (x + y) / 2, y)]
    # Rounding of sums of a few hundred terms of this size; what overflows says nothing.
    slack = 1e-11 * torch.stack(values).abs().sum(0)
    known = torch.isfinite(slack)
    assert bool((values[1] <= (values[0] + values[2]) / 2 + slack)[known].all())
    assert bool(known.any())


def violation(network: Network, points: Tensor, entry: int) -> Fraction:
    """f(middle) - mean of f(ends), exactly."""
    first, middle, last = (rational(p) for p in points)
    assert [a + b for a, b in zip(first, last, strict=True)] == [2 * m for m in middle]
    values = [evaluated(network, p)[entry] for p in (first, middle, last)]
    return values[1] - (values[0] + values[2]) / 2


def test_the_example_is_convex_and_its_negative_is_not() -> None:
    verdict = is_convex(author())
    assert verdict.answer is ProofAnswer.PROVEN
    assert_midpoints(author(), 3.0)
    turned = author().then(Dense(-torch.ones(1, 1).double()))
    other = is_convex(turned)
    assert other.answer is ProofAnswer.DISPROVEN
    assert other.witness is not None
    assert violation(turned, other.witness, 0) > 0
    assert "concave" in is_convex(turned, search=QUIET).reason


@pytest.mark.parametrize("activation", [RELU, softplus(2.0), leaky_relu(0.2), EXP], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_input_convex_networks_are_proven(activation: Activation, seed: int) -> None:
    network = icnn(seed, activation, depth=2 if activation is EXP else 3)
    assert is_convex(network).proven
    assert is_convex(network, Ball(torch.zeros(4).double(), 1.0)).proven
    assert_midpoints(network, 0.1 if activation is EXP else 2.0)
    turned = network.then(Dense(-torch.eye(2).double()))
    assert not is_convex(turned, search=QUIET).proven


@pytest.mark.parametrize("seed", range(3))
def test_one_negative_weight_is_noticed(seed: int) -> None:
    network = icnn(seed, RELU)
    block = network.blocks[3, 2]
    assert isinstance(block, Dense)
    weight = block.weight.clone()
    weight[0, seed] = -3.0
    spoilt = replace(network, blocks={**network.blocks, (3, 2): Dense(weight)})
    verdict = is_convex(spoilt)
    assert verdict.answer is not ProofAnswer.PROVEN
    for i, finding in enumerate(verdict.findings):
        if finding.witness is not None:
            assert violation(spoilt, finding.witness, i) > 0
    silent = is_convex(spoilt, search=QUIET)
    assert silent.answer is ProofAnswer.UNKNOWN
    assert "row 3" in silent.reason
    # An activation of one sign behind the mixture cannot repair it; the layer before it is blameless.
    assert "row 2" not in silent.reason


@given(st.integers(0, 10**6), st.sampled_from([0.01, 1.0, 30.0]))
@settings(max_examples=8)
def test_mixed_signs_are_disproven_with_exact_witnesses(seed: int, radius: float) -> None:
    network = mlp(seed, RELU)
    region = Ball(noise(seed + 77, 3), radius)
    for where in (region, Everywhere()):
        verdict = is_convex(network, where)
        # A network of 16 mixed neurons is never convex everywhere, and two thousand triples find that out.
        assert verdict.answer is ProofAnswer.DISPROVEN or where is region
        for i, finding in enumerate(verdict.findings):
            if finding.answer is ProofAnswer.DISPROVEN:
                assert finding.witness is not None
                assert violation(network, finding.witness, i) > 0
                if isinstance(where, Ball):
                    assert bool((torch.linalg.vector_norm(finding.witness - region.center, dim=1) <= radius).all())
            elif finding.answer is ProofAnswer.PROVEN and isinstance(where, Ball):
                assert_midpoints(network.then(Dense(torch.eye(2).double()[i : i + 1])), radius / 10, region.center)


def maxima(node: Node) -> Network:
    """A node on affine functions of two variables, added up."""
    blocks = {(1, 0): Dense(noise(3, node.shape[0], 2)), (2, 1): Dense(torch.ones(1, node.target[0]).double())}
    return Network((2,), (node,), blocks, target=(1,))


def test_nodes_with_several_arguments() -> None:
    windows = torch.tensor([[0, 1, 2], [2, 3, 3]])
    for node in (WindowMax((4,), windows), OrderStatistics((4,), (-1,)), LogSumExp((4,)), VectorNorm((4,), 2.0)):
        assert is_convex(maxima(node)).proven
        assert_midpoints(maxima(node), 2.0)
        assert not is_convex(maxima(node).then(Dense(-torch.ones(1, 1).double())), search=QUIET).proven
    for node in (OrderStatistics((4,), (0,)), LogSoftmax((4,))):
        assert is_convex(maxima(node).then(Dense(-torch.ones(1, 1).double()))).proven
        assert not is_convex(maxima(node), search=QUIET).proven
    # The second largest of four is neither.
    assert not is_convex(maxima(OrderStatistics((4,), (-2,))), search=QUIET).proven


def test_composition_is_not_free() -> None:
    """exp(-x^2): an increasing convex function of a concave one."""
    blocks = {(1, 0): Dense(torch.ones(1, 1).double()), (2, 1): Dense(-torch.ones(1, 1).double())}
    blocks[3, 2] = Dense(torch.ones(1, 1).double())
    origins = (Origin("square", "inner"), Origin("exp", "outer"), Origin("output"))
    nodes = (Pointwise(SQUARE, (1,)), Pointwise(EXP, (1,)))
    network = Network((1,), nodes, blocks, origins=origins, target=(1,))
    verdict = is_convex(network)
    assert verdict.answer is ProofAnswer.DISPROVEN
    assert verdict.witness is not None
    x = verdict.witness.flatten()
    assert float(torch.exp(-(x[1] ** 2))) > float(torch.exp(-(x**2))[[0, 2]].mean())
    assert "exp at outer" in is_convex(network, search=QUIET).reason
    # Beyond its inflection at 1/sqrt(2) it is convex, which only its Hessian knows.
    tail = is_convex(network, Box(torch.tensor([0.8]).double(), torch.tensor([0.9]).double()))
    assert tail.proven
    assert "Hessian" in tail.reason
    assert not is_convex(network, Box(torch.tensor([0.6]).double(), torch.tensor([0.8]).double()), search=QUIET).proven


ACTIVATIONS = [RELU, ABS, leaky_relu(-0.5), clamp(-1, 1), TANH, SIGMOID, softplus(1.0), LOGSIGMOID, GELU, SQUARE, EXP]


def small(seed: int) -> Network:
    """One to three nodes of many kinds with few weights, so that proofs are common."""
    chance = random.Random(seed)
    dim, depth = chance.choice([1, 2]), chance.choice([1, 2, 3])
    sizes, nodes, blocks = [dim], [], {}
    for k in range(1, depth + 2):
        width = chance.choice([1, 2]) if k <= depth else 1
        if k <= depth:
            nodes.append(Pointwise(chance.choice(ACTIVATIONS), (width,)))
        for j in {k - 1, chance.randrange(k)}:
            rows = [[chance.choice([0, 0, 1, 1, 2, -1, 0.5]) for _ in range(sizes[j])] for _ in range(width)]
            blocks[k, j] = Dense(torch.tensor(rows, dtype=torch.float64))
        sizes.append(width)
    biases = {k: noise(seed + k, sizes[k]) for k in range(1, depth + 1)}
    return Network((dim,), tuple(nodes), blocks, biases, target=(1,))


def test_small_networks_of_many_kinds_are_never_wrongly_judged() -> None:
    answers: list[ProofAnswer] = []
    for seed in range(30):
        network = small(seed)
        center = 2 * noise(seed, *network.source)
        for region, scale, middle in ((Everywhere(), 3.0, None), (Ball(center, 0.5, math.inf), 0.1, center)):
            verdict = is_convex(network, region, search=CounterexampleSearch(lines=4))
            answers.append(verdict.answer)
            if verdict.proven:
                assert_midpoints(network, scale, middle)
            if verdict.witness is not None:
                ends = network(verdict.witness).flatten()
                # Interval arithmetic has proven it; this only repeats it within rounding.
                assert float(ends[1]) >= float(ends[0] / 2 + ends[2] / 2) - 1e-13 * float(ends.abs().max())
    assert all(answers.count(answer) >= 5 for answer in ProofAnswer)


def test_inside_one_linear_region_everything_is_convex() -> None:
    network = mlp(3, RELU)
    assert is_convex(network, Ball(torch.zeros(3).double(), 1e-6)).proven
    # Nothing depends on what the search would find.
    assert is_convex(network, Box(torch.zeros(3).double(), torch.zeros(3).double())).proven


def test_affine_networks_are_convex_through_any_moves() -> None:
    index = Index(torch.tensor([2, -1, 0]), (3,))
    network = Network((3,), (), {(1, 0): index}, target=(3,))
    assert [finding.answer for finding in is_convex(network).findings] == [ProofAnswer.PROVEN] * 3


def test_outputs_are_judged_one_by_one() -> None:
    network = icnn(0, RELU).then(Dense(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()))
    answers = [finding.answer for finding in is_convex(network).findings]
    assert answers == [ProofAnswer.PROVEN, ProofAnswer.DISPROVEN]


def test_a_verdict_is_no_truth_value() -> None:
    verdict = is_convex(author())
    assert str(verdict) == "convex everywhere: proven (by the rules of composition)"
    with pytest.raises(KindError, match="compare its `answer`"):
        bool(verdict)


def test_a_model_that_was_not_captured_is_refused() -> None:
    model: Any = nn.Linear(2, 1)
    with unchecked(), pytest.raises(ArgumentError, match=r"got Linear; give lipkit.capture\(model, x\)"):
        is_convex(model)


def test_weights_that_are_not_finite_are_refused() -> None:
    network = author().then(Dense(torch.tensor([[float("nan")]]).double()))
    with pytest.raises(NonFiniteError, match="repair"):
        is_convex(network)
