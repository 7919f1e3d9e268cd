"""Smooth versions of networks: errors against sampling, and what becomes provable of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import Kind
from lipkit.bounds.fold.dag import DAG
from lipkit.bounds.properties.convexity import is_convex
from lipkit.bounds.properties.differentiability import is_differentiable
from lipkit.bounds.properties.smooth_relaxation import smooth_relaxation
from lipkit.bounds.properties.smoothness import Smoothness
from lipkit.bounds.properties.soft_maximum import SoftMaximum
from lipkit.bounds.properties.verdict import ProofAnswer
from lipkit.errors import ArgumentError, NeedsRegion, UnsupportedError
from lipkit.linops import Dense, LinearOperator
from lipkit.trace import Network, Reach, chain
from lipkit.trace.nodes import RELU, Activation, Node, Pointwise
from lipkit.trace.nodes.activations.powers import SQUARE
from lipkit.trace.nodes.activations.sigmoids import TANH
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.pointwise import ABS, clamp, leaky_relu, prelu, softshrink
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.nodes.window_maxima import WindowMax

KINKED: list[Activation] = [RELU, ABS, leaky_relu(0.2), clamp(-0.5, 0.7), softshrink(0.3), prelu(torch.tensor(-0.4))]
WINDOWS = torch.tensor([[0, 1, 2], [2, 3, 3], [4, 5, 4]])


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def author() -> Network:
    """f(x, y) = relu([x, y] . [1, 2]) - 2."""
    first, last = Dense(torch.tensor([[1.0, 2.0]]).double()), Dense(torch.ones(1, 1).double())
    blocks = {(1, 0): first, (2, 1): last}
    return Network((2,), (Pointwise(RELU, (1,)),), blocks, {2: torch.tensor([-2.0]).double()}, target=(1,))


def mlp(seed: int, activation: Activation) -> Network:
    operators = [Dense(noise(seed + i, *shape) / 2) for i, shape in enumerate([(6, 3), (6, 6), (2, 6)])]
    return chain(operators, activation, [noise(seed + 10, 6), noise(seed + 11, 6), None])


def pooled(seed: int, node: Node) -> Network:
    """A layer of ReLU, then the node, then a smooth layer."""
    count = node.target[0]
    nodes = (Pointwise(RELU, (6,)), node, Pointwise(TANH, (count,)))
    blocks: dict[tuple[int, int], LinearOperator] = {
        (1, 0): Dense(noise(seed, 6, 3)),
        (2, 1): Dense(noise(seed + 1, 6, 6)),
        (3, 2): Dense(noise(seed + 2, count, count)),
        (4, 3): Dense(noise(seed + 3, 2, count)),
        (4, 0): Dense(noise(seed + 4, 2, 3)),
    }
    return Network((3,), nodes, blocks, target=(2,))


def distance(network: Network, mu: float, points: Tensor) -> float:
    relaxed = smooth_relaxation(network, mu).network
    return float((network(points) - relaxed(points)).abs().max())


def test_the_example_from_end_to_end() -> None:
    network = author()
    constant = DAG()(network)
    # sqrt 5 up to the rounding of norms and logarithms.
    assert float(constant.value) == pytest.approx(math.sqrt(5), rel=1e-9)
    assert is_convex(network).proven
    assert is_differentiable(network).answer is ProofAnswer.DISPROVEN
    relaxed = smooth_relaxation(network, 0.75)
    assert is_differentiable(relaxed.network).proven
    assert is_convex(relaxed.network).proven
    assert relaxed.error.kind is Kind.UPPER
    assert relaxed.error.failure == 0
    # The largest distance is that at the kink, mu log 2, and the curvature there is |(1, 2)|^2 / (4 mu).
    assert float(relaxed.error.value) == pytest.approx(0.75 * math.log(2), rel=1e-9)
    assert distance(network, 0.75, torch.zeros(1, 2).double()) == pytest.approx(0.75 * math.log(2), rel=1e-12)
    assert float(Smoothness()(relaxed.network).value) == pytest.approx(5 / (4 * 0.75), rel=1e-9)


@given(st.integers(0, 10**6), st.sampled_from(KINKED), st.sampled_from([1e-3, 0.1, 2.0]))
@settings(max_examples=8)
def test_errors_of_pointwise_networks_stay_below(seed: int, activation: Activation, mu: float) -> None:
    network = mlp(seed, activation)
    relaxed = smooth_relaxation(network, mu)
    points = noise(seed + 3, 2000, 3)
    # The last bits of both evaluations.
    assert distance(network, mu, points) <= float(relaxed.error.value) + 1e-12
    assert is_differentiable(relaxed.network).proven
    finer = smooth_relaxation(network, mu / 4)
    # All single errors are proportional to mu.
    assert float(finer.error.value) == pytest.approx(float(relaxed.error.value) / 4, rel=1e-9)


@pytest.mark.parametrize("activation", KINKED, ids=str)
def test_single_activations_reach_their_error(activation: Activation) -> None:
    """A layer of one neuron: the error at the worst point is the stated one, for kinks that do not overlap."""
    mu = 1e-3
    network = chain([Dense(torch.ones(1, 1).double())] * 2, activation)
    points = torch.tensor([[k] for k in activation.kinks], dtype=torch.float64)
    stated = float(smooth_relaxation(network, mu).error.value)
    assert distance(network, mu, points) == pytest.approx(stated, rel=1e-6)


@pytest.mark.parametrize("node", [WindowMax((6,), WINDOWS), OrderStatistics((6,), (-1,)), OrderStatistics((6,), (0,))])
@pytest.mark.parametrize("seed", range(3))
def test_errors_of_maxima_stay_below(node: Node, seed: int) -> None:
    network = pooled(seed, node)
    points = torch.cat([noise(seed + 9, 2000, 3), torch.zeros(1, 3).double()])
    for mu in (0.01, 0.5):
        relaxed = smooth_relaxation(network, mu)
        assert distance(network, mu, points) <= float(relaxed.error.value) + 1e-12
        assert is_differentiable(relaxed.network).proven
        assert float(Smoothness()(relaxed.network).value) < math.inf


def test_an_equal_maximum_reaches_its_error() -> None:
    for ranks, sign in (((-1,), 1), ((0,), -1)):
        node = OrderStatistics((5,), ranks)
        blocks = {(1, 0): Dense(torch.eye(5).double()), (2, 1): Dense(torch.ones(1, 1).double())}
        network = Network((5,), (node,), blocks, target=(1,))
        relaxed = smooth_relaxation(network, 0.3)
        points = torch.ones(1, 5).double()
        gap = (relaxed.network(points) - network(points)) * sign
        assert float(gap) == pytest.approx(0.3 * math.log(5), rel=1e-12)
        assert float(relaxed.error.value) == pytest.approx(0.3 * math.log(5), rel=1e-9)


def test_the_smaller_of_two_sums_is_taken() -> None:
    """Orthogonal layers: |A| grows by sqrt(n) a layer, norms do not; one wide layer: the other way round."""
    size = 16
    layers = [Dense(torch.linalg.qr(noise(i, size, size)).Q) for i in range(6)]
    last = Dense(torch.ones(1, size).double() / math.sqrt(size))
    deep = chain([*layers, last], RELU)
    error = float(smooth_relaxation(deep, 1.0).error.value)
    # Six layers, each off by log 2 in every one of 16 entries, seen through maps of norm 1.
    assert error <= 6 * math.log(2) * math.sqrt(size) * (1 + 1e-9)
    wide = chain([Dense(noise(1, size, 3)), Dense(torch.eye(size).double())], RELU)
    assert float(smooth_relaxation(wide, 1.0).error.value) == pytest.approx(math.log(2), rel=1e-9)


def test_input_convex_networks_stay_convex() -> None:
    blocks: dict[tuple[int, int], LinearOperator] = {
        (1, 0): Dense(noise(0, 6, 3)),
        (2, 1): Dense(noise(1, 6, 6).abs()),
        (2, 0): Dense(noise(2, 6, 3)),
        (3, 2): Dense(noise(3, 1, 3).abs()),
    }
    network = Network((3,), (Pointwise(RELU, (6,)), WindowMax((6,), WINDOWS)), blocks, target=(1,))
    assert is_convex(network).proven
    relaxed = smooth_relaxation(network, 0.2)
    assert is_convex(relaxed.network).proven
    # Softplus lies above relu and log-sum-exp above the maximum, and all weights behind them are positive.
    points = noise(5, 500, 3)
    assert bool((relaxed.network(points) >= network(points)).all())


def test_networks_without_kinks_are_left_alone() -> None:
    network = mlp(0, TANH)
    relaxed = smooth_relaxation(network, 0.1)
    assert relaxed.network.nodes[0] is not None
    assert float(relaxed.error.value) == 0
    assert distance(network, 0.1, noise(1, 10, 3)) == 0


def test_what_has_no_smooth_version_is_refused_by_name() -> None:
    for node, name in ((OrderStatistics((6,), (0, 1, 2, 3, 4, 5)), "sort"), (VectorNorm((6,), 2.0), "l2 norm")):
        with pytest.raises(UnsupportedError, match=f"row 2.*{name}"):
            smooth_relaxation(pooled(0, node), 0.1)
    for mu in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="mu > 0"):
            smooth_relaxation(author(), mu)
    blocks = {(k, k - 1): Dense(torch.ones(1, 1).double()) for k in (1, 2, 3)}
    square = Network((1,), (Pointwise(RELU, (1,)), Pointwise(SQUARE, (1,))), blocks, target=(1,))
    with pytest.raises(NeedsRegion, match="not Lipschitz"):
        smooth_relaxation(square, 0.1)


@given(st.integers(0, 10**6), st.sampled_from([1, -1]), st.sampled_from([0.01, 1.0]))
@settings(max_examples=10)
def test_soft_maxima_keep_their_promises(seed: int, sign: int, mu: float) -> None:
    node = SoftMaximum((2, 6), WINDOWS, mu, sign)
    z = noise(seed, 200, 2, 6)
    exact = sign * (sign * z)[..., WINDOWS].amax(-1)
    gap = sign * (node(z) - exact)
    assert bool((gap >= -1e-12).all())
    assert bool((gap <= node.error + 1e-12).all())
    jacobian = torch.func.vmap(torch.func.jacrev(lambda x: node(x[None])[0].flatten()))(z[:20]).flatten(2)
    for p in (1.0, 2.0, math.inf):
        size = torch.linalg.matrix_norm(jacobian, p).max()
        assert float(size) <= math.exp(float(node.log_constant(p))) * (1 + 1e-12)
    width = noise(seed + 1, 2, 6).abs()
    reach = Reach(z[0] - width, z[0] + width, z[0], torch.linalg.vector_norm(width))
    inside = z[0] + width * (2 * torch.rand(100, 2, 6, dtype=torch.float64) - 1)
    found = node.reach(reach)
    values = node(inside)
    assert bool(((values >= found.low) & (values <= found.high)).all())
    assert bool(((values - found.center).flatten(1).norm(dim=1) <= found.radius).all())


def test_soft_maxima_refuse_wrong_parameters() -> None:
    with pytest.raises(ArgumentError, match="mu > 0"):
        SoftMaximum((6,), WINDOWS, 0.0)
    with pytest.raises(ArgumentError, match="sign"):
        SoftMaximum((6,), WINDOWS, 0.1, 2)
