"""Gradients through batch normalisation, and the one with a common scale."""

import copy

import pytest
import torch
from torch import nn

from lipkit import nn as lnn

F64 = torch.float64


@pytest.mark.parametrize("gamma", [1.0, -2.5])
def test_the_gradient_identity_of_batch_normalisation(gamma: float) -> None:
    """|dL/dy|^2 = (gamma / sigma)^2 (|g|^2 - <1, g>^2 / m - <g, z>^2 / m), an equality for eps = 0."""
    # torch refuses eps = 0.
    torch.manual_seed(0)
    m = 12
    y = (3 + 2 * torch.randn(m, 1, dtype=F64)).requires_grad_()
    layer = nn.BatchNorm1d(1, eps=1e-300).double()
    with torch.no_grad():
        layer.weight.fill_(gamma)
    g = torch.randn(m, 1, dtype=F64)
    (found,) = torch.autograd.grad(layer(y), y, g)
    std = y.detach().std(correction=0)
    z = (y.detach() - y.detach().mean()) / std
    expected = (gamma / std) ** 2 * (g.square().sum() - g.sum() ** 2 / m - (g * z).sum() ** 2 / m)
    torch.testing.assert_close(found.square().sum(), expected)


def test_ours_obeys_the_identity_while_its_scale_is_not_clipped() -> None:
    torch.manual_seed(0)
    m = 12
    y = (3 + 5 * torch.randn(m, 1, dtype=F64)).requires_grad_()
    layer = lnn.BatchNorm(1, eps=0.0).double().train()
    g = torch.randn(m, 1, dtype=F64)
    (found,) = torch.autograd.grad(layer(y), y, g)
    std = y.detach().std(correction=0)
    assert float(std) > 1
    z = (y.detach() - y.detach().mean()) / std
    expected = (g.square().sum() - g.sum() ** 2 / m - (g * z).sum() ** 2 / m) / std**2
    torch.testing.assert_close(found.square().sum(), expected)


@pytest.mark.parametrize("training", [True, False])
def test_a_common_scale_has_constant_one(training: bool) -> None:
    """The Jacobian of a whole batch by dense SVD, after batches of very different channels."""
    torch.manual_seed(0)
    layer = lnn.CommonBatchNorm(3, momentum=0.5).double()
    with torch.no_grad():
        layer.weight.fill_(2.0)
    spread = torch.tensor([0.01, 1.0, 6.0], dtype=F64)
    for _ in range(5):
        layer.train()(spread * torch.randn(8, 3, dtype=F64))
    layer.train(training)
    jacobian = torch.autograd.functional.jacobian(copy.deepcopy(layer), spread * torch.randn(4, 3).double())
    assert isinstance(jacobian, torch.Tensor)
    values = torch.linalg.svdvals(jacobian.reshape(12, 12).detach())
    assert float(values[0]) <= 1 + 1e-14
    # The scale is 2 over the largest deviation, about 6, for all channels alike.
    assert 0.2 < float(values[0]) < 0.6


def test_a_common_scale_keeps_directions_and_follows_the_largest_variance() -> None:
    torch.manual_seed(0)
    layer = lnn.CommonBatchNorm(3, momentum=1.0)
    layer.train()(torch.tensor([1.0, 2.0, 5.0]) * torch.randn(4000, 3))
    layer.eval()
    x = torch.randn(6, 3)
    moved = layer(x + 1) - layer(x)
    # One number for all channels: one over the largest deviation, to the accuracy of 4000 draws.
    torch.testing.assert_close(moved, torch.full_like(moved, 0.2), rtol=0.05, atol=0)


def test_with_statistics_of_the_batch_a_common_scale_would_have_a_larger_constant() -> None:
    """Why the scale comes from running statistics: two channels of equal variance, scaled by that of one of them."""
    x = torch.tensor([[3.0, 3.0], [-3.0, -3.0]], dtype=F64) + torch.tensor([[1e-6, 0.0], [0.0, 0.0]], dtype=F64)

    def by_batch(x: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(x, 0, correction=0)
        return (x - mean) * (2.9 / var.max().sqrt()).clamp(-1, 1)

    values = torch.linalg.svdvals(torch.func.jacrev(by_batch)(x).reshape(4, 4))
    assert float(values[0]) > 1.3
