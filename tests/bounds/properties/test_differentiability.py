"""Differentiability: proofs away from kinks, and kinks proven by exact slopes at both ends of a segment."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bounds.lower.search_lines import CounterexampleSearch
from lipkit.bounds.properties.differentiability import is_differentiable
from lipkit.bounds.properties.verdict import ProofAnswer
from lipkit.linops import Dense, Reshape
from lipkit.regions import Ball, Box
from lipkit.trace import Network, Origin, chain
from lipkit.trace.nodes import RELU, Activation, Node, Pointwise
from lipkit.trace.nodes.activations.powers import EXP, LOG, SQRT, SQUARE
from lipkit.trace.nodes.activations.sigmoids import TANH, softplus
from lipkit.trace.nodes.attention.log_softmax import LogSumExp
from lipkit.trace.nodes.attention.softmax import Softmax
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.pointwise import ABS, leaky_relu
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.nodes.window_maxima import WindowMax
from support.networks.rational_networks import Vector, evaluated, rational

QUIET = CounterexampleSearch(lines=0)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def box(low: float, high: float, size: int = 1) -> Box:
    return Box(torch.full((size,), low).double(), torch.full((size,), high).double())


def mlp(seed: int, activation: Activation) -> Network:
    operators = [Dense(noise(seed + i, *shape)) for i, shape in enumerate([(6, 3), (6, 6), (2, 6)])]
    return chain(operators, activation, [noise(seed + 10, 6), noise(seed + 11, 6), None])


def through(*nodes: Node) -> Network:
    """The nodes one after the other, nothing in between."""
    shapes = [nodes[0].shape, *(node.target for node in nodes)]
    blocks = {(k, k - 1): Reshape(shape, shape) for k, shape in enumerate(shapes, start=1)}
    return Network(nodes[0].shape, nodes, blocks, target=shapes[-1])


def has_a_kink(network: Network, segment: Tensor, entry: int) -> bool:
    """The slopes of a piecewise linear function at the two ends of a segment, exactly: different only across a kink."""
    first, last = (rational(p) for p in segment)

    def at(t: Fraction) -> Fraction:
        point: Vector = [a + t * (b - a) for a, b in zip(first, last, strict=True)]
        return evaluated(network, point)[entry]

    tiny = Fraction(1, 2**60)
    return (at(tiny) - at(Fraction(0))) != (at(Fraction(1)) - at(1 - tiny))


def author() -> Network:
    """f(x, y) = relu([x, y] . [1, 2]) - 2."""
    first, last = Dense(torch.tensor([[1.0, 2.0]]).double()), Dense(torch.ones(1, 1).double())
    blocks = {(1, 0): first, (2, 1): last}
    return Network((2,), (Pointwise(RELU, (1,)),), blocks, {2: torch.tensor([-2.0]).double()}, target=(1,))


def test_the_example_has_a_kink_and_where_it_has_none() -> None:
    verdict = is_differentiable(author())
    assert verdict.answer is ProofAnswer.DISPROVEN
    assert verdict.witness is not None
    assert has_a_kink(author(), verdict.witness, 0)
    # The kink is the line x + 2 y = 0: the ends lie on different sides of it.
    sides = verdict.witness @ torch.tensor([1.0, 2.0]).double()
    assert float(sides[0]) * float(sides[1]) < 0
    assert is_differentiable(author(), box(0.1, 4.0, 2)).proven
    assert is_differentiable(author(), Ball(-torch.ones(2).double(), 1.0)).proven
    assert is_differentiable(author(), box(-1.0, 4.0, 2)).answer is ProofAnswer.DISPROVEN
    assert "relu may have a kink" in is_differentiable(author(), box(-0.1, 4.0, 2), search=QUIET).reason


@given(st.integers(0, 10**6), st.sampled_from([1e-3, 0.1, 3.0]))
@settings(max_examples=5)
def test_verdicts_on_balls_agree_with_exact_slopes(seed: int, radius: float) -> None:
    network = mlp(seed, RELU)
    center = noise(seed + 9, 3)
    verdict = is_differentiable(network, Ball(center, radius))
    ends = center + radius * torch.nn.functional.normalize(noise(seed + 8, 4, 3), dim=1) * 0.999
    for i, finding in enumerate(verdict.findings):
        if finding.answer is ProofAnswer.DISPROVEN:
            assert finding.witness is not None
            assert has_a_kink(network, finding.witness, i)
            assert bool((torch.linalg.vector_norm(finding.witness - center, dim=1) <= radius).all())
        elif finding.answer is ProofAnswer.PROVEN:
            assert not has_a_kink(network, ends[:2], i)
            assert not has_a_kink(network, ends[2:], i)
    # A ball of this size meets kinks of 12 neurons with weights of order 1.
    assert verdict.answer is ProofAnswer.DISPROVEN or radius < 3


@pytest.mark.parametrize("activation", [TANH, softplus(1.0), EXP, SQUARE], ids=str)
def test_smooth_networks_are_differentiable_everywhere(activation: Activation) -> None:
    assert is_differentiable(mlp(0, activation)).proven


def test_a_kink_at_the_end_of_a_range_does_no_harm() -> None:
    inner, outer = Pointwise(softplus(1.0), (1,)), Pointwise(RELU, (1,))
    assert is_differentiable(through(inner, outer)).proven
    squared = through(Pointwise(SQUARE, (1,)), Pointwise(ABS, (1,)))
    assert is_differentiable(squared).proven
    assert is_differentiable(squared, box(-1.0, 2.0)).proven
    # With relu inside, the inner kink remains, and the outer one does not hide it.
    assert is_differentiable(through(outer, outer), search=QUIET).answer is ProofAnswer.UNKNOWN
    assert is_differentiable(through(outer, outer)).answer is ProofAnswer.DISPROVEN


def test_a_slope_without_bound_is_no_derivative() -> None:
    """sqrt(x^2) = |x| has no kink in any activation, and none at 0 but an infinite slope of the root."""
    root = through(Pointwise(SQUARE, (1,)), Pointwise(SQRT, (1,)))
    assert is_differentiable(root, search=CounterexampleSearch(lines=4)).answer is ProofAnswer.UNKNOWN
    assert is_differentiable(root, box(-1.0, 1.0), search=CounterexampleSearch(lines=4)).answer is ProofAnswer.UNKNOWN
    assert is_differentiable(root, box(0.5, 1.0)).proven
    assert not is_differentiable(through(Pointwise(LOG, (1,)))).proven
    assert is_differentiable(through(Pointwise(LOG, (1,))), box(1.0, 2.0)).proven


def test_a_kink_without_a_jump_or_without_influence_disproves_nothing() -> None:
    flat = mlp(1, leaky_relu(1.0))
    assert is_differentiable(flat, search=CounterexampleSearch(lines=4)).answer is not ProofAnswer.DISPROVEN
    blocks = {(1, 0): Dense(torch.ones(1, 1).double()), (2, 1): Dense(torch.zeros(1, 1).double())}
    cut = Network((1,), (Pointwise(RELU, (1,)),), blocks, target=(1,))
    assert is_differentiable(cut).proven
    # Two kinks that cancel: relu(x) - relu(x) = 0, and relu(x) - relu(-x) = x.
    both = {(1, 0): Dense(torch.tensor([[1.0], [-1.0]]).double()), (2, 1): Dense(torch.tensor([[1.0, -1.0]]).double())}
    line = Network((1,), (Pointwise(RELU, (2,)),), both, target=(1,))
    assert is_differentiable(line, search=CounterexampleSearch(lines=4)).answer is ProofAnswer.UNKNOWN


def test_maxima_are_differentiable_where_nothing_ties() -> None:
    low, high = torch.tensor([[0.0, 2.0, 4.0]]).double(), torch.tensor([[1.0, 3.0, 5.0]]).double()
    apart, touching = Box(low, high), Box(low, high + 1.5)
    windows = WindowMax((1, 3), torch.tensor([[0, 1, 1], [1, 2, 2]]))
    for node in (windows, OrderStatistics((1, 3), (-1,)), OrderStatistics((1, 3), (0, 1, 2))):
        assert is_differentiable(through(node), apart).proven
        assert is_differentiable(through(node), touching).answer is ProofAnswer.UNKNOWN
        assert is_differentiable(through(node)).answer is ProofAnswer.UNKNOWN
    for node in (Softmax((1, 3)), LogSumExp((1, 3))):
        assert is_differentiable(through(node)).proven
    assert is_differentiable(through(VectorNorm((1, 3), 2.0))).answer is ProofAnswer.UNKNOWN


def test_outputs_are_judged_one_by_one_and_the_first_kink_is_named() -> None:
    nodes = (Pointwise(RELU, (1,)), Pointwise(TANH, (1,)), Pointwise(RELU, (1,)))
    one = Dense(torch.ones(1, 1).double())
    first, second = (Dense(torch.eye(2).double()[:, i : i + 1].clone()) for i in range(2))
    blocks = {(1, 0): one, (2, 0): one, (3, 1): one, (4, 2): first, (4, 3): second}
    origins = tuple(Origin(name) for name in ("first", "smooth", "second", "output"))
    network = Network((1,), nodes, blocks, origins=origins, target=(2,))
    verdict = is_differentiable(network)
    assert [finding.answer for finding in verdict.findings] == [ProofAnswer.PROVEN, ProofAnswer.DISPROVEN]
    assert is_differentiable(network, search=QUIET).reason.startswith("first")
