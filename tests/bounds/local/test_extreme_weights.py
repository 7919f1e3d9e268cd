"""Weights whose squares leave the range of floats, and whose product does not."""

import pytest
import torch
from torch import nn

import lipkit


@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e100, 1e200])
@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_a_tiny_layer_before_a_huge_one(size: float, radius: float):
    torch.manual_seed(0)
    first, last = (nn.Linear(3, 3, bias=False, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        first.weight.mul_(size)
        last.weight.mul_(1 / size)
    model, x = nn.Sequential(first, nn.Tanh(), last), torch.rand(1, 3, dtype=torch.float64)
    found = float(lipkit.lipschitz(model, x, region=lipkit.Ball(x[0], radius)).value.detach())
    jacobian = torch.func.jacrev(lambda z: model(z[None])[0])(x[0]).detach()
    assert found >= float(torch.linalg.matrix_norm(jacobian, 2))
