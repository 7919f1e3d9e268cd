"""Products on a region: their linear part is a structured operator, whose size every norm can bound."""

import math

import pytest
import torch
from torch import nn

from lipkit.bound import Metric
from lipkit.bounds import DAG, LipLT
from lipkit.bounds.fold import liplt as expansion
from lipkit.bounds.fold.linear_paths import Pulled
from lipkit.bounds.local.local import Local
from lipkit.linops import materialize
from lipkit.regions import Ball, Reach
from lipkit.trace.capture import capture
from lipkit.trace.nodes import Node, Split
from lipkit.trace.nodes.entrywise_product import Product
from lipkit.trace.nodes.matrix_product import MatrixProduct
from support.zoo import models as zoo

CPU = torch.device("cpu")
NODES: list[Node] = [Product((2, 3), (2, 1)), Product((2, 1), (3,)), Product((3,), ()), MatrixProduct(2, 2, 3, 4)]


def local(node: Node) -> Split:
    torch.manual_seed(0)
    center = torch.randn(node.shape, dtype=torch.float64)
    low, high = center - 0.1, center + 0.1
    return node.within(Reach(low, high, center, torch.tensor(0.1, dtype=torch.float64))).split(2.0)


@pytest.mark.parametrize("node", NODES, ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_the_size_of_the_linear_part_bounds_its_norm(node: Node, p: float):
    split = local(node)
    assert split.center is not None
    found = Pulled.of(split, CPU, p)
    matrix = materialize(split.center)
    for order in {2.0, p}:
        # LAPACK and the sums are within a few roundings.
        assert found.center >= float(torch.linalg.matrix_norm(matrix, order)) * (1 - 1e-14)
    assert found.center < math.inf


@pytest.mark.parametrize("node", NODES, ids=str)
def test_the_linear_part_is_the_derivative_at_the_middle(node: Node):
    split = local(node)
    assert split.center is not None
    torch.manual_seed(0)
    middle = torch.randn(node.shape, dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda z: node(z[None])[0])(middle).reshape(math.prod(node.target), -1)
    # The middle of the box is rounded.
    assert torch.allclose(materialize(split.center), jacobian, rtol=0, atol=1e-14)


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_gates_and_bilinear_maps_have_a_local_bound(monkeypatch: pytest.MonkeyPatch, p: float, written_out: bool):
    if not written_out:
        monkeypatch.setattr(expansion, "_DENSE", 0)
    gated, example = zoo.ZOO["gated"]()
    center, radius = example[0].double(), 0.1
    network, metric = capture(gated.requires_grad_(False), example), Metric(p, p)
    found = Local(LipLT(metric=metric))(network, Ball(center, radius, p))
    # The largest cube in the ball.
    points = center + radius * 5 ** (-1 / p) * (2 * torch.rand(200, 5, dtype=torch.float64) - 1)
    jacobians = torch.stack([torch.func.jacrev(lambda v: gated(v[None])[0])(x) for x in points])
    truth = float(torch.linalg.matrix_norm(jacobians.detach(), p, dim=(1, 2)).max())
    assert float(found.value) >= truth * (1 - 1e-12)
    assert float(found.value) <= float(Local(DAG(metric=metric))(network, Ball(center, radius, p)).value) * (1 + 1e-9)


def test_a_product_of_two_matrices_of_the_input():
    class Bilinear(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ x.mT).sum((-1, -2))

    torch.manual_seed(0)
    center = torch.randn(3, 4, dtype=torch.float64)
    network = capture(Bilinear(), center[None])
    found = float(Local(LipLT())(network, Ball(center, 1e-3)).value)
    gradient = torch.func.grad(lambda v: torch.relu(v @ v.mT).sum())(center)
    # On a small ball the bound is near the gradient: the linear part carries all of it.
    assert float(gradient.norm()) * (1 - 1e-12) <= found <= 1.1 * float(gradient.norm())
