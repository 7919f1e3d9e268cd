"""The constant of the Jacobian: closed forms, differences of Jacobians, and refusals that name what is rough."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import Kind
from lipkit.bounds.fold.dag import DAG
from lipkit.bounds.properties.second_derivatives import curvature, is_smooth
from lipkit.bounds.properties.smoothness import Smoothness
from lipkit.bounds.properties.soft_maximum import SoftMaximum
from lipkit.errors import NeedsRegion
from lipkit.linops import Dense
from lipkit.regions import Ball, Box
from lipkit.trace import Network, Origin, chain
from lipkit.trace.nodes import RELU, Activation, Node, Pointwise
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.powers import SQUARE
from lipkit.trace.nodes.activations.sigmoids import SIGMOID, TANH, softplus
from lipkit.trace.nodes.attention.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.attention.softmax import Softmax
from lipkit.trace.nodes.entrywise_product import Product
from lipkit.trace.nodes.matrix_product import MatrixProduct
from lipkit.trace.nodes.order_statistics import OrderStatistics

SMOOTH: list[Activation] = [TANH, SIGMOID, softplus(1.5), GELU]


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mlp(seed: int, activation: Activation, dim: int = 3) -> Network:
    shapes = [(6, dim), (6, 6), (2, 6)]
    operators = [Dense(noise(seed + i, *shape)) for i, shape in enumerate(shapes)]
    return chain(operators, activation, [noise(seed + 10, 6), noise(seed + 11, 6), None])


def jacobians(network: Network, points: Tensor) -> Tensor:
    def one(x: Tensor) -> Tensor:
        return network(x[None])[0].flatten()

    return torch.func.vmap(torch.func.jacrev(one))(points)


def steepest(network: Network, points: Tensor, apart: float) -> float:
    """The largest difference quotient of the Jacobian over pairs at a small and at a larger distance."""
    found = 0.0
    for distance in (apart, 1e-3 * apart):
        others = points + distance * torch.nn.functional.normalize(noise(9, *points.shape), dim=1)
        change = jacobians(network, points) - jacobians(network, others)
        size = torch.linalg.matrix_norm(change, 2) / (points - others).norm(dim=1)
        found = max(found, float(size.max()))
    return found


def test_one_neuron_is_exact() -> None:
    """x -> a softplus(w . x): the Jacobian a s(w . x) w turns fastest at 0, with |a| |w|^2 beta / 4."""
    w, a = noise(0, 1, 5), torch.tensor([[-3.0]]).double()
    network = chain([Dense(w), Dense(a)], softplus(2.0))
    found = Smoothness()(network)
    assert found.kind is Kind.UPPER
    assert str(found.method) == "Lipschitz constant of the Jacobian"
    # The bound is rounded up by a few units in the last place of every factor.
    assert float(found.value) == pytest.approx(3 * float(w.square().sum()) * 2 / 4, rel=1e-9)
    assert float(found.value) >= 3 * float(w.square().sum()) * 2 / 4 * (1 - 1e-15)


def test_affine_networks_have_none_and_quadratics_theirs() -> None:
    network = Network((3,), (), {(1, 0): Dense(noise(1, 2, 3))}, target=(2,))
    assert float(Smoothness()(network).value) == 0
    matrix = noise(2, 4, 3)
    square = chain([Dense(matrix), Dense(torch.ones(1, 4).double())], SQUARE)
    truth = 2 * float(torch.linalg.matrix_norm(matrix, 2)) ** 2
    # On the whole space the network is not Lipschitz, but its Jacobian is; the sum over nodes needs the former.
    found = Smoothness()(square, Ball(torch.zeros(3).double(), 1.0))
    assert truth <= float(found.value) <= truth * 2 * math.sqrt(4)


@given(st.integers(0, 10**6), st.sampled_from(SMOOTH))
@settings(max_examples=6)
def test_differences_of_jacobians_stay_below(seed: int, activation: Activation) -> None:
    network = mlp(seed, activation)
    points = noise(seed + 3, 200, 3)
    everywhere = float(Smoothness()(network).value)
    assert everywhere >= steepest(network, points, 0.5)
    center = noise(seed + 4, 3)
    ball = Ball(center, 0.05)
    near = center + 0.04 * torch.nn.functional.normalize(noise(seed + 5, 200, 3), dim=1)
    local = float(Smoothness()(network, ball).value)
    assert local >= steepest(network, near, 0.009)
    # The ranges can only help; constants on a region are rounded up again.
    assert local <= everywhere * (1 + 1e-9)


def test_local_constants_can_be_far_smaller() -> None:
    network = chain([Dense(torch.eye(2).double()), Dense(torch.ones(1, 2).double())], TANH)
    far = Box(torch.full((2,), 5.0).double(), torch.full((2,), 6.0).double())
    # tanh'' is at most 8 exp(-2 z) beyond 5, and there are two neurons in a row of norm sqrt(2).
    assert float(Smoothness()(network, far).value) <= math.sqrt(2) * 8 * math.exp(-10)


@pytest.mark.parametrize("activation", SMOOTH, ids=str)
def test_on_tiny_regions_the_bound_is_the_second_derivative(activation: Activation) -> None:
    network = mlp(2, activation).then(Dense(torch.tensor([[1.0, -2.0]]).double()))
    center = noise(3, 3)
    hessian = torch.autograd.functional.hessian(lambda x: network(x[None]).sum(), center)
    truth = float(torch.linalg.matrix_norm(hessian, 2))  # pyright: ignore[reportArgumentType, reportCallIssue]
    found = Smoothness()(network, Ball(center, 1e-7))
    # A third derivative of order 10^4 over the radius, and no more.
    assert truth * (1 - 1e-9) <= float(found.value) <= truth * 1.01
    assert found.failure == 0


def test_skip_connections_add_up() -> None:
    """x + B tanh(A x), then tanh again: L <= L_g l_f^2 + l_g L_f, all four computed by hand."""
    first, second = noise(1, 4, 4), noise(2, 4, 4)
    nodes = (Pointwise(TANH, (4,)), Pointwise(TANH, (4,)))
    identity = Dense(torch.eye(4).double())
    blocks = {(1, 0): Dense(first), (2, 0): identity, (2, 1): Dense(second), (3, 2): identity}
    network = Network((4,), nodes, blocks, target=(4,))
    norms = [float(torch.linalg.matrix_norm(m, 2)) for m in (first, second)]
    bend = 4 * math.sqrt(3) / 9
    slope = 1 + norms[0] * norms[1]
    inner = norms[1] * bend * norms[0] ** 2
    found = float(Smoothness()(network).value)
    assert steepest(network, noise(3, 300, 4), 0.3) <= found <= (bend * slope**2 + inner) * (1 + 1e-9)


def test_the_fused_network_has_the_same_constant() -> None:
    network = mlp(4, TANH)
    fused = DAG().fused(network)
    assert float(Smoothness()(fused).value) == pytest.approx(float(Smoothness()(network).value), rel=1e-12)


def test_kinks_in_range_are_refused_by_name() -> None:
    network = mlp(0, RELU)
    named = Network(
        network.source,
        network.nodes,
        network.blocks,
        network.biases,
        (Origin("relu", "act1"), Origin("relu", "act2"), Origin("output")),
        network.target,
    )
    with pytest.raises(NeedsRegion, match=r"relu at act1.*relu at act2"):
        Smoothness()(named)
    # Within one linear region the Jacobian is constant.
    assert float(Smoothness()(named, Ball(torch.zeros(3).double(), 1e-6)).value) == 0
    sort = Network((3,), (OrderStatistics((3,), (0, 1, 2)),), {**eyes(3)}, target=(3,))
    with pytest.raises(NeedsRegion, match="sort: its curvature is not known"):
        Smoothness()(sort)


def eyes(size: int) -> dict[tuple[int, int], Dense]:
    return {(k, k - 1): Dense(torch.eye(size).double()) for k in (1, 2)}


NODES: list[tuple[Node, float]] = [
    (LogSumExp((5,)), 0.5),
    (LogSoftmax((3, 4)), 1.0),
    (Softmax((3, 4)), 0.0),
    (Product((2, 3), (2, 3)), 1.0),
    (Product((3, 1), (1, 2)), 1.0),
    (MatrixProduct(2, 2, 3, 2), 1.0),
    (SoftMaximum((6,), torch.tensor([[0, 1, 2], [2, 3, 3], [4, 5, 2]]), 0.3), 1 / 0.6),
    (SoftMaximum((2, 3), torch.tensor([[0, 1, 2]]), 0.5, -1), 1.0),
]


@pytest.mark.parametrize(("node", "attained"), NODES, ids=[str(node) for node, _ in NODES])
def test_second_derivatives_of_nodes(node: Node, attained: float) -> None:
    """Gradient ascent on ||D^2 phi(z)[u, v]|| over unit u, v: never above the stated constant, and near it if exact."""
    stated = curvature(node)
    assert stated is not None
    assert is_smooth(node)
    z, u, v = (noise(s, 8, *node.shape).requires_grad_() for s in (1, 2, 3))
    optimizer = torch.optim.Adam([z, u, v], lr=0.1)
    best = 0.0
    for _ in range(80):
        size = second(node, z, u, v)
        best = max(best, float(size.detach().max()))
        optimizer.zero_grad()
        (-size.sum()).backward()
        optimizer.step()
    # Derivatives by autograd: accurate to rounding.
    assert best <= stated * (1 + 1e-9)
    assert best >= attained * 0.97


def second(node: Node, z: Tensor, u: Tensor, v: Tensor) -> Tensor:
    def one(z: Tensor, u: Tensor, v: Tensor) -> Tensor:
        def at(t: Tensor, s: Tensor) -> Tensor:
            return node((z + t * u / u.norm() + s * v / v.norm())[None])[0].flatten()

        zero = z.new_zeros(())
        return torch.func.jacrev(torch.func.jacrev(at, argnums=0), argnums=1)(zero, zero).norm()

    return torch.func.vmap(one)(z, u, v)
