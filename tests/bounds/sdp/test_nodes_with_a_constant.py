"""Semidefinite bounds of nodes that are known by a constant only, and a second solver."""

import itertools
import sys
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor

from lipkit.bounds.sdp.cuts import cut_vertices
from lipkit.bounds.sdp.cvxpy_solver import Cvxpy
from lipkit.bounds.sdp.dense_network import read
from lipkit.bounds.sdp.eclipse import ECLipsE
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.bounds.sdp.lipsdp import LipSDP
from lipkit.bounds.sdp.network_program import program_of
from lipkit.bounds.sdp.program import Multipliers
from lipkit.bounds.sdp.seqlip import SeqLip
from lipkit.errors import UnsupportedError
from lipkit.linops import Dense, Shape
from lipkit.regions import Box
from lipkit.trace import Network, Reach, chain
from lipkit.trace.nodes import RELU, Node, Pointwise
from support.networks.random_graphs import random_network, reference_network


@final
@dataclass(frozen=True, eq=False)
class Sorted(Node):
    """y = factor sort(z): permutes, so its constant is |factor|."""

    size: int
    factor: float

    @property
    def shape(self) -> Shape:
        return (self.size,)

    @property
    def target(self) -> Shape:
        return (self.size,)

    def __call__(self, z: Tensor) -> Tensor:
        return self.factor * z.sort(-1).values

    def log_constant(self, p: float) -> Tensor:
        return torch.tensor(abs(self.factor), dtype=torch.float64).log()

    def within(self, reach: Reach) -> "Sorted":
        return self

    def reach(self, reach: Reach) -> Reach:
        raise NotImplementedError


def sorting_network(seed: int) -> tuple[Network, float, float]:
    """W3 relu(W2 sort(W1 x)), its constant over all permutations and patterns, and the product of the norms."""
    rng = np.random.default_rng(seed)
    first, second, third = (rng.normal(size=s) for s in ((3, 4), (4, 3), (2, 4)))
    nodes = (Sorted(3, 2.0), Pointwise(RELU, (4,)))
    blocks = {(k, k - 1): Dense(torch.from_numpy(m)) for k, m in enumerate((first, second, third), start=1)}
    truth = max(
        np.linalg.norm(third @ np.diag(pattern) @ second @ (2 * np.eye(3)[list(order)]) @ first, 2)
        for order in itertools.permutations(range(3))
        for pattern in itertools.product((0.0, 1.0), repeat=4)
    )
    product = 2 * np.prod([np.linalg.norm(m, 2) for m in (first, second, third)])
    return Network((4,), nodes, blocks, target=(2,)), float(truth), float(product)


@pytest.mark.parametrize("seed", range(4))
def test_nodes_with_a_constant_only(seed: int):
    network, truth, product = sorting_network(seed)
    found = {}
    for method in (LipSDP(), LipSDP(Multipliers.PER_LAYER), LipSDP(split=1), ECLipsE(), SeqLip(), SeqLip(0)):
        found[str(method)] = float(method(network).value)
        assert truth <= found[str(method)] <= product * (1 + 2e-6), str(method)
    # One constraint for the node is better than a cut at it.
    assert found[str(LipSDP())] <= found[str(LipSDP(split=1))] * (1 + 2e-6)


def test_cut_vertices_are_what_nothing_jumps_over():
    residual = Network(
        (2,),
        tuple(Pointwise(RELU, (2,)) for _ in range(4)),
        {at: Dense(torch.eye(2)) for at in ((1, 0), (2, 1), (3, 2), (3, 1), (4, 3), (5, 4))},
        target=(2,),
    )
    assert cut_vertices(residual) == [1, 3, 4]
    # Parts of nodes {}, {2} and {4}: 1 and 3 are cut at.
    assert len(LipSDP(split=1)(residual).parts) == 3
    jump = Network((2,), residual.nodes, {**residual.blocks, (5, 0): Dense(torch.eye(2))}, target=(2,))
    assert cut_vertices(jump) == []
    # A value that the output does not depend on jumps over nothing.
    nodes = (*residual.nodes, Pointwise(RELU, (2,)))
    idle = Network((2,), nodes, {**jump.blocks, (6, 4): Dense(torch.eye(2))}, target=(2,))
    assert cut_vertices(idle) == [1, 3, 4]


def test_cvxpy_finds_the_same_values():
    pytest.importorskip("cvxpy")
    pytest.importorskip("clarabel")
    for network in (reference_network(), random_network(4), random_network(18)):
        for multipliers in Multipliers:
            solvers = (InteriorPoint(), Cvxpy())
            ours, theirs = (float(LipSDP(multipliers, solver)(network).value) for solver in solvers)
            # Clarabel stops at 1e-8, and what is repaired costs up to 1e-7; ours at 1e-6.
            assert theirs == pytest.approx(ours, rel=3e-6)


def test_a_missing_package_is_said_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(UnsupportedError, match="pip install"):
        LipSDP(solver=Cvxpy())(reference_network())


def test_a_chain_is_asked_for_where_only_chains_are_read():
    skip = Network(
        (2,), (Pointwise(RELU, (2,)),), {at: Dense(torch.eye(2)) for at in ((1, 0), (2, 1), (2, 0))}, target=(2,)
    )
    for method in (ECLipsE(), SeqLip()):
        with pytest.raises(UnsupportedError, match="LipSDP"):
            method(skip)
    assert float(LipSDP()(skip).value) == pytest.approx(2.0, rel=2e-6)
    assert float(LipSDP()(chain([Dense(2 * torch.eye(2))], RELU)).value) == pytest.approx(2.0, rel=1e-12)


def test_slopes_of_a_box_give_a_local_bound():
    # Interval arithmetic on [-0.1, 0.1]^2 in numpy, and gradients on a grid as lower bound.
    network = reference_network()
    middle, width = np.zeros(2), np.full(2, 0.1)
    nodes = []
    for k, node in enumerate(network.nodes, start=1):
        op = network.blocks[k, k - 1]
        assert isinstance(op, Dense)
        assert isinstance(node, Pointwise)
        middle, width = op.weight.numpy() @ middle + network.biases[k].numpy(), np.abs(op.weight.numpy()) @ width
        low, high = middle - width, middle + width
        nodes.append(Pointwise(node.activation, node.size, (torch.from_numpy(low), torch.from_numpy(high))))
        low, high = np.maximum(low, 0), np.maximum(high, 0)
        middle, width = (low + high) / 2, (high - low) / 2
    box = Box(torch.full((2,), -0.1), torch.full((2,), 0.1))
    local = Network(network.source, tuple(nodes), network.blocks, network.biases, target=network.target)
    bound = LipSDP()(local, box)
    assert bound.region == box
    grid = torch.cartesian_prod(*[torch.linspace(-0.1, 0.1, 21, dtype=torch.float64)] * 2).requires_grad_()
    steepest = torch.autograd.grad(network(grid).sum(), grid)[0].norm(dim=1).max()
    assert float(steepest) * (1 - 1e-13) <= float(bound.value) < 0.95 * float(LipSDP()(network).value)
    # Some neurons are linear there, and have no multiplier.
    assert program_of(read(local), Multipliers.PER_NEURON).groups < 7
