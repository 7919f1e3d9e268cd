"""What a model spells out is recognised: the same function, one node, and a constant on the whole space."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.linops import Dense, Index, Reshape
from lipkit.trace.capture import capture, merge_known_layers
from lipkit.trace.network import Network
from lipkit.trace.nodes import Identity, OrderStatistics, Pointwise, Product
from lipkit.trace.rewrites.merge_order_statistics import merge_max_min
from lipkit.trace.rewrites.spelled_gates import merge_gates
from lipkit.trace.rewrites.spelled_normalization import merge_normalizers


class Formula(nn.Module):
    """A model that is one formula."""

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x)


def network_of(formula: Callable[[Tensor], Tensor]) -> Network:
    return capture(Formula(formula), torch.randn(1, 4, 6))


def names(network: Network) -> list[str]:
    return [str(node) for node in network.nodes if str(node) != "identity"]


def max_min(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)


GATES: dict[str, tuple[Callable[[Tensor], Tensor], str, float]] = {
    "silu": (lambda x: x * torch.sigmoid(x), "silu", 1.0998393201288667),
    "silu, other way round": (lambda x: torch.sigmoid(x) * x * 2, "silu", 1.0998393201288667),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), "swish(1.702)", 1.0998393201288667),
    "hard swish": (lambda x: functional.relu6(x + 3) / 6 * x, "hardswish", 1.5),
    "hard swish by gate": (lambda x: x * functional.hardsigmoid(x), "hardswish", 1.5),
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), "gelu", 1.1289041451851557),
    "gelu by tanh": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
        "gelu(tanh)",
        1.1289930686587724,
    ),
    "mish": (lambda x: x * torch.tanh(functional.softplus(x)), "mish", 1.0884981612517285),
    "softsign": (functional.softsign, "softsign", 1.0),
    "tanhshrink": (functional.tanhshrink, "tanhshrink", 1.0),
}


@pytest.mark.parametrize("name", GATES)
def test_gates_become_activations_with_their_constants(name: str):
    formula, expected, constant = GATES[name]
    before = network_of(formula)
    after = merge_gates(before)
    assert names(after) == [expected]
    x = 3 * torch.randn(50, 4, 6, dtype=torch.float64)
    # The same formula in another order of roundings.
    assert torch.allclose(after(x), before(x), rtol=1e-13, atol=1e-14)
    (node,) = (node for node in after.nodes if str(node) == expected)
    assert node.log_constant(2.0).exp().item() == pytest.approx(constant, rel=1e-14)


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x * torch.sigmoid(-x),
        lambda x: x * torch.sigmoid(x + 1),
        lambda x: x * torch.sigmoid(x.flip(1)),
        lambda x: (x + 1) * torch.sigmoid(x),
        lambda x: x * functional.relu6(x + 2),
        lambda x: x * (1 + torch.erf(x)),
        lambda x: x * (2 + torch.erf(x / math.sqrt(2))),
        lambda x: x * torch.tanh(functional.softplus(x, beta=2.0)),
        lambda x: x / (2 + x.abs()),
        lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.05 * torch.pow(x, 3.0)))),
    ],
)
def test_near_misses_are_left_alone(formula: Callable[[Tensor], Tensor]):
    before = network_of(formula)
    after = merge_known_layers(before)
    # A product, or a formula of one variable that holds one: no gate that is known by name.
    assert any("product" in name for name in names(after))
    x = torch.randn(20, 4, 6, dtype=torch.float64)
    assert torch.equal(after(x), before(x))


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def layer(x: Tensor, axis: int) -> Tensor:
    centered = x - x.mean(axis, keepdim=True)
    return centered / torch.sqrt(x.var(axis, keepdim=True, unbiased=False) + 1e-5)


NORMALIZERS: dict[str, tuple[Callable[[Tensor], Tensor], str, float]] = {
    "rms": (rms, "RMS normalisation", 1e3),
    "rms over two axes": (
        lambda x: x / torch.sqrt(x.square().mean((1, 2), keepdim=True) + 1e-4),
        "RMS normalisation",
        1e2,
    ),
    # The smallest divisor is sqrt(eps) here too, whatever weight the squares have.
    "by a sum": (lambda x: x / (x.square().sum(1, keepdim=True) + 0.25).sqrt(), "RMS normalisation", 2.0),
    "layer": (lambda x: layer(x, -1), "RMS normalisation", 1e5**0.5),
    "layer over the first axis": (lambda x: layer(x, 1), "RMS normalisation", 1e5**0.5),
    "length": (lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=0.01), "division by the length", 100.0),
    "F.normalize": (lambda x: functional.normalize(x, dim=1, eps=1e-3), "division by the length", 1000.0),
    "length over the first axis": (
        lambda x: x / torch.clamp_min(x.norm(dim=1, keepdim=True), 0.01),
        "division by the length",
        100.0,
    ),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalisation_becomes_one_node_with_its_constant(name: str):
    formula, expected, constant = NORMALIZERS[name]
    before = network_of(formula)
    after = merge_normalizers(before)
    assert names(after) == [expected]
    x = torch.randn(30, 4, 6, dtype=torch.float64)
    assert torch.allclose(after(x), before(x), rtol=1e-12, atol=1e-13)
    k = next(i for i, node in enumerate(after.nodes, start=1) if str(node) == expected)
    # The node's constant times the number behind it, which is a scale of a permutation.
    (op,) = (op for (_, j), op in after.blocks.items() if j == k)
    behind = op.apply(torch.ones(1, *op.in_shape, dtype=torch.float64)).abs().max()
    found = after.nodes[k - 1].log_constant(2.0).exp() * behind
    assert found.item() == pytest.approx(constant, rel=1e-12)


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x.flip(1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt((x.pow(2) * torch.arange(6)).mean(-1, keepdim=True) + 1e-6),
        lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt(x[:, :1].pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6).flip(1),
        lambda x: x / x.norm(p=1, dim=-1, keepdim=True).clamp(min=1e-3),
        lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6),
    ],
)
def test_other_divisions_are_left_alone(formula: Callable[[Tensor], Tensor]):
    before = network_of(formula)
    after = merge_known_layers(before)
    # A product, or a formula of one variable that holds one: no gate that is known by name.
    assert any("product" in name for name in names(after))
    x = torch.randn(20, 4, 6, dtype=torch.float64)
    assert torch.equal(after(x), before(x))


def swapped(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.cat([torch.maximum(a, b), torch.minimum(b, a)], 1)


@pytest.mark.parametrize("max_min", [max_min, swapped])
def test_max_and_min_of_one_pair_become_one_node(max_min: Callable[[Tensor], Tensor]):
    after = network_of(max_min)
    assert len(names(after)) == 1
    assert merge_max_min(after) is after
    x = torch.randn(20, 4, 6, dtype=torch.float64)
    assert torch.equal(after(x), max_min(x))
    # The whole map is a permutation everywhere: its Jacobian has norm 1, where two halves would give sqrt(2).
    jacobian = torch.func.jacrev(lambda v: after(v[None])[0])(x[0]).reshape(24, 24)
    assert torch.linalg.matrix_norm(jacobian, 2).item() == pytest.approx(1.0)
    node = next(node for node in after.nodes if isinstance(node, OrderStatistics))
    assert node.log_constant(2.0) == 0
    assert math.prod(node.target) == 24


def test_extremes_along_an_axis_are_merged_and_other_pairs_are_not():
    pair = merge_max_min(network_of(lambda x: torch.cat([x.amax(-1), x.amin(-1), x.median(-1).values], -1)))
    assert [str(n) for n in pair.nodes if isinstance(n, OrderStatistics)] == ["order statistics (5, 0, 2)"]
    other = merge_max_min(network_of(lambda x: torch.maximum(x, x.flip(1)) + torch.minimum(x, x.flip(2))))
    assert names(other) == ["max", "min"]
    twice = merge_max_min(network_of(lambda x: x.amax(-1) + 2 * x.amax(-1)))
    assert names(twice) == ["max"]


def test_a_sum_is_recognised_as_one_value():
    # x = a + relu(a) enters the gate and the norm as a whole, as in residual networks.
    def formula(a: Tensor) -> Tensor:
        x = a + functional.relu(a)
        return rms(x) + x * torch.sigmoid(x)

    before = network_of(formula)
    after = merge_known_layers(before)
    assert sorted(names(after)) == ["RMS normalisation", "relu", "silu"]
    x = torch.randn(20, 4, 6, dtype=torch.float64)
    assert torch.allclose(after(x), before(x), rtol=1e-12, atol=1e-13)


def test_a_network_without_patterns_is_returned_as_it_is():
    network = network_of(lambda x: functional.relu(x) + x)
    assert merge_known_layers(network) is network


def test_learned_numbers_are_not_frozen_into_an_activation():
    # x sigmoid(beta x) with a live beta must stay differentiable in beta.
    model = nn.Module()
    model.beta = nn.Parameter(torch.tensor(1.5))
    model.forward = lambda x: x * torch.sigmoid(model.beta * x)  # pyright: ignore[reportAttributeAccessIssue]
    network = merge_known_layers(capture(model, torch.randn(1, 3)))
    assert "product" in names(network)


def test_a_product_of_values_that_were_joined_otherwise_is_left_alone():
    # Factors in the wrong order within the joined vector are no x sigmoid(x).
    size = 3
    slots = torch.tensor([0, 1, 2, -1, -1, -1]), torch.tensor([-1, -1, -1, 2, 1, 0])
    network = Network(
        (size,),
        (
            Pointwise(Identity(), (size,)),
            Pointwise(Identity(), (2 * size,)),
            Product((size,), (size,)),
        ),
        {
            (1, 0): Dense(torch.randn(size, size, dtype=torch.float64)),
            (2, 0): Index(slots[0], (size,)),
            (2, 1): Index(slots[1], (size,)),
            (3, 2): Reshape((2 * size,), (2 * size,)),
            (4, 3): Reshape((size,), (size,)),
        },
        target=(size,),
    )
    assert merge_known_layers(network) is network
