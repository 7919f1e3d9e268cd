"""The penalty on a whole network's constant."""

from typing import Any

import pytest
import torch
from torch import nn

from lipkit import bounds
from lipkit.bound import Kind
from lipkit.errors import NonFiniteError
from lipkit.norms import SVD
from lipkit.regularizers import BoundPenalty, LogNormSum, layers_of


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def chain() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def test_a_chain_is_the_sum_of_logarithms() -> None:
    model = chain()
    x = torch.zeros(1, 4, dtype=torch.float64)
    penalty = BoundPenalty(bounds.Product(SVD()))
    found = penalty(model, x)
    expected = LogNormSum(norm=SVD())(layers_of(model, x))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    assert penalty.bound(model, x).kind is Kind.UPPER
    weights = [model[0].weight, model[2].weight]
    ours, theirs = torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs, strict=True))


def test_shortcuts_and_normalisation_count() -> None:
    torch.manual_seed(0)
    block: Any = Residual(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())).double().train()
    with torch.no_grad():
        block.inner[1].weight.copy_(torch.tensor([3.0, 1.0, 1.0, 1.0]))
    x = torch.zeros(2, 4, dtype=torch.float64)
    found = BoundPenalty(bounds.Product(SVD()))(block, x)
    scale = torch.linalg.svdvals(block.inner[0].weight.detach())[0] * 3 / (1 + 1e-5) ** 0.5
    assert float(found.detach()) == pytest.approx(float(torch.log(1 + scale)), rel=1e-9)
    assert block.training
    assert block.inner[1].training


def test_gradients_are_those_of_the_value() -> None:
    model: Any = nn.Sequential(Residual(nn.Sequential(nn.Linear(3, 3), nn.Tanh())), nn.Linear(3, 2)).double()
    x = torch.zeros(1, 3, dtype=torch.float64)
    penalty = BoundPenalty(bounds.DAG(SVD()))
    weight = model[0].inner[0].weight
    (found,) = torch.autograd.grad(penalty(model, x), [weight])
    direction = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h, values = 1e-6, []
    for step in (h, -h):
        with torch.no_grad():
            weight.add_(step * direction)
        values.append(float(penalty(model, x).detach()))
        with torch.no_grad():
            weight.sub_(step * direction)
    assert float((found * direction).sum()) == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-7)


def test_training_lowers_the_bound() -> None:
    model = chain().float()
    x = torch.zeros(1, 4)
    penalty = BoundPenalty()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = float(penalty.bound(model, x).value.detach())
    for _ in range(5):
        optimizer.zero_grad()
        penalty(model, x).backward()
        optimizer.step()
    assert float(penalty.bound(model, x).value.detach()) < 0.5 * first


def test_a_constant_network_has_no_logarithm() -> None:
    model = chain()
    nn.init.zeros_(model[0].weight)
    with pytest.raises(NonFiniteError, match="constant is 0"):
        BoundPenalty()(model, torch.zeros(1, 4, dtype=torch.float64))
