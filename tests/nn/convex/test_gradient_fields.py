"""Layers that are gradients: symmetric Jacobians, monotone maps, and matrices that commute."""

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import ShapeError, UnsupportedError
from lipkit.nn import convex


def matrix(layer: nn.Module, features: int) -> torch.Tensor:
    return torch.func.jacrev(layer)(torch.zeros(features, dtype=torch.float64)).detach()


@pytest.mark.parametrize("features", [1, 2, 3, 5, 6, 8])
def test_symmetric_circulant_matrices_commute(features: int) -> None:
    torch.manual_seed(0)
    layers = [convex.SymmetricCirculant(features).double() for _ in range(2)]
    first, second = (matrix(layer, features) for layer in layers)
    for found in (first, first @ second):
        # A transform of eight numbers is off by some units of 2^-53.
        torch.testing.assert_close(found, found.mT, rtol=0, atol=1e-15)
        torch.testing.assert_close(found, found.roll((1, 1), (0, 1)), rtol=0, atol=1e-15)
    torch.testing.assert_close(first @ second, second @ first, rtol=0, atol=1e-15)
    assert layers[0].free.numel() == features // 2 + 1
    norm = float(torch.linalg.svdvals(first)[0])
    declared = layers[0].declared_lipschitz((features,))
    assert declared.kind.name == "EXACT"
    assert abs(norm - float(declared.value.detach())) <= 1e-14


def test_the_printed_matrix_is_toeplitz_and_does_not_commute() -> None:
    def printed(a: float, b: float, c: float) -> torch.Tensor:
        rows = [[a, b, c, b, a], [b, a, b, c, b], [c, b, a, b, c], [b, c, b, a, b], [a, b, c, b, a]]
        return torch.tensor(rows)

    first, second = printed(1.0, 2.0, 3.0), printed(1.0, 0.0, 2.0)
    assert float((first @ second - second @ first).abs().max()) == 4
    assert not torch.equal(first, first.roll((1, 1), (0, 1)))


def test_monotone_circulants_are_positive_semidefinite() -> None:
    torch.manual_seed(0)
    layer = convex.SymmetricCirculant(7, monotone=True).double()
    with torch.no_grad():
        layer.free.normal_()
    values = torch.linalg.eigvalsh(matrix(layer, 7))
    assert float(values[0]) >= -1e-15
    assert float(values[-1]) <= 1 + 1e-15


@pytest.mark.parametrize("activation", [None, nn.Tanh(), nn.Softplus()], ids=repr)
def test_convex_gradient_is_symmetric_and_monotone(activation: nn.Module | None) -> None:
    torch.manual_seed(0)
    layer = convex.ConvexGradient(6, 11, activation=activation).double()
    smallest = 1.0
    for size in (0.1, 1.0, 10.0):
        with torch.no_grad():
            layer.weight.normal_(0, size)
        x, y = 3 * torch.randn(2, 500, 6, dtype=torch.float64)
        jacobians = torch.func.vmap(torch.func.jacrev(layer))(x[:50]).detach()
        torch.testing.assert_close(jacobians, jacobians.mT, rtol=0, atol=1e-13)
        values = torch.linalg.eigvalsh(jacobians)
        assert float(values.min()) >= -1e-13
        assert float(values.max()) <= 1 + 1e-13
        assert float(((layer(x) - layer(y)) * (x - y)).sum(-1).min().detach()) >= 0
        smallest = min(smallest, float(values.min()))
    # It is not the identity.
    assert smallest < 0.7


def test_convex_gradient_is_the_gradient_of_its_potential() -> None:
    torch.manual_seed(0)
    layer = convex.ConvexGradient(5).double()
    weight, bias = layer.weight.detach(), layer.bias
    assert bias is not None
    steps = layer.coefficient_of(weight).detach()

    def potential(x: torch.Tensor) -> torch.Tensor:
        hidden = (weight @ x + bias.detach()).relu()
        return x.square().sum() / 2 - (steps * hidden.square()).sum() / 2

    for x in torch.randn(10, 5, dtype=torch.float64):
        torch.testing.assert_close(torch.func.grad(potential)(x), layer(x).detach())


def test_a_step_twice_as_long_is_not_monotone() -> None:
    """The layer of the semidefinite condition has constant 1 too, but moves some pairs against each other."""
    torch.manual_seed(0)
    layer = lnn.SLL(4, 4).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    x, y = 3 * torch.randn(2, 500, 4, dtype=torch.float64)
    assert float(((layer(x) - layer(y)) * (x - y)).sum(-1).min().detach()) < 0


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="non-decreasing"):
        convex.ConvexGradient(4, activation=lnn.Absolute())
    with pytest.raises(ShapeError, match=r"SymmetricCirculant\(4\)"):
        convex.SymmetricCirculant(4)(torch.zeros(2, 5))
    with pytest.raises(ShapeError, match="takes"):
        convex.SymmetricCirculant(4).declared_lipschitz((5,))
