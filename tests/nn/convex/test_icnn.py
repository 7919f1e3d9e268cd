"""Convex networks: proven from their graphs, tried on 1e5 segments, and different where a rule is broken."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import is_convex
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn import convex
from support.unchecked import unchecked

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "stochastic": {"method": convex.Stochastic()},
    "softplus": {"activation": nn.Softplus(), "method": convex.NonNegative(convex.NonNegativeMap.SOFTPLUS)},
    "leaky": {"activation": nn.LeakyReLU(0.3), "method": convex.Orthostochastic(), "output": convex.ConvexOutput.SUM},
    "group max": {"activation": convex.GroupMax(2), "quadratic": False},
    "smooth groups": {"activation": convex.GroupLogSumExp(2, 0.5), "method": convex.Stochastic(None)},
    "half squares": {"output": convex.ConvexOutput.HALF_SQUARES},
    "with a base": {"base": convex.ConvexQuadratic(5)},
}
PAIRS = 100_000


def moved(model: nn.Module, size: float = 0.4) -> nn.Module:
    """The model in float64, away from its start."""
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return model


def excess(function: Any, pairs: int = PAIRS) -> Tensor:
    """f((x + y) / 2) - (f(x) + f(y)) / 2 on random segments of all lengths, relative to the size of the values."""
    x = torch.randn(pairs, 5, dtype=torch.float64) * 3
    y = x + torch.randn_like(x) * torch.logspace(-2, 1, pairs, dtype=torch.float64)[:, None]
    with torch.no_grad():
        middle, ends = function((x + y) / 2), (function(x), function(y))
        return (middle - (ends[0] + ends[1]) / 2) / (1 + ends[0].abs() + ends[1].abs())


@pytest.mark.parametrize("name", SETTINGS)
def test_convex_by_proof_and_on_segments(name: str) -> None:
    torch.manual_seed(0)
    model = moved(convex.ICNN(5, (8, 8, 8), **SETTINGS[name]))
    verdict = is_convex(lipkit.capture(model, torch.zeros(1, 5, dtype=torch.float64)))
    assert verdict.proven, str(verdict)
    # Values are sums of some dozens of terms, each rounded by 1e-16 of its size.
    assert float(excess(model).max()) <= 1e-13


def test_a_negative_weight_is_seen() -> None:
    """The same network with one free weight: no proof, and segments that disprove it."""
    torch.manual_seed(0)
    model = moved(convex.ICNN(5, (8, 8, 8), activation=nn.ReLU()))
    assert isinstance(model, convex.ICNN)
    model.weights[0] = nn.Linear(8, 8, False).double()
    assert not is_convex(lipkit.capture(model, torch.zeros(1, 5, dtype=torch.float64))).proven
    assert float(excess(model, 10_000).max()) > 1e-3


def test_the_hessian_is_positive_semidefinite() -> None:
    torch.manual_seed(0)
    model = moved(convex.ICNN(4, (6, 6), activation=nn.Softplus()))
    for x in torch.randn(20, 4, dtype=torch.float64):
        hessian = torch.func.jacrev(torch.func.jacrev(model))(x)
        # Second derivatives of size 1 by autograd: a thousand roundings.
        assert float(torch.linalg.eigvalsh(hessian)[0].detach()) >= -1e-12


def test_the_gradient_is_the_derivative_and_monotone() -> None:
    torch.manual_seed(0)
    model = moved(convex.ICNN(5, (8, 8)))
    assert isinstance(model, convex.ICNN)
    x, y = torch.randn(2, 1000, 5, dtype=torch.float64)
    first, second = model.gradient(x), model.gradient(y)
    z = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(z).sum(), z)
    torch.testing.assert_close(first, expected)
    assert float(((first - second) * (x - y)).sum(-1).min().detach()) >= -1e-12
    (trained,) = torch.autograd.grad(first.square().sum(), model.tail.weight)
    assert float(trained.abs().max()) > 0


def test_it_learns_the_map_between_gaussians() -> None:
    """From the identity to N(m, 4 I): a few hundred steps of matching gradients lower the error a hundredfold."""
    torch.manual_seed(0)
    model = convex.ICNN(2, (16, 16), base=convex.ConvexQuadratic(2))
    x = torch.randn(256, 2)
    target = 2 * x + torch.tensor([1.0, -1.0])
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    errors = []
    for _ in range(150):
        error = (model.gradient(x) - target).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(float(error.detach()))
    assert errors[-1] < errors[0] / 100


def test_starts_near_its_base() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    gradient = convex.ICNN(3, base=convex.ConvexQuadratic(3)).gradient(x).detach()
    assert float((gradient - x).norm(dim=1).max()) < 0.01


def test_the_quadratic_takes_one_gaussian_to_the_other() -> None:
    """Against the closed form by an independent root, and against moments: A C A' = D."""
    torch.manual_seed(0)
    roots = torch.randn(2, 4, 4, dtype=torch.float64)
    first, second = (r @ r.mT + 0.1 * torch.eye(4, dtype=torch.float64) for r in roots)
    means = torch.randn(2, 4, dtype=torch.float64)
    potential = convex.ConvexQuadratic.between_gaussians(means[0], first, means[1], second)
    jacobian = torch.func.jacrev(torch.func.jacrev(potential))(torch.zeros(4, dtype=torch.float64)).detach()
    torch.testing.assert_close(jacobian, jacobian.mT)
    assert float(torch.linalg.eigvalsh(jacobian)[0]) > 0
    torch.testing.assert_close(jacobian @ first @ jacobian, second, rtol=1e-8, atol=1e-8)
    gradient = torch.func.grad(potential)(means[0])
    torch.testing.assert_close(gradient, means[1])
    assert is_convex(lipkit.capture(potential, means[:1])).proven


class _InOneArgument(nn.Module):
    def __init__(self, model: nn.Module, context: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("context", context)

    def forward(self, y: Tensor) -> Tensor:
        context = self.get_buffer("context")
        return self.model(context.expand(len(y), -1), y)


@pytest.mark.slow
def test_picnn_is_convex_in_its_second_argument_alone() -> None:
    torch.manual_seed(0)
    model = moved(convex.PICNN(5, 5, (8, 8, 8)))
    for context in torch.randn(2, 5, dtype=torch.float64):
        fixed = _InOneArgument(model, context)
        assert is_convex(lipkit.capture(fixed, torch.zeros(1, 5, dtype=torch.float64))).proven
        assert float(excess(fixed, PAIRS // 2).max()) <= 1e-13
    y = torch.randn(5, dtype=torch.float64)
    assert float(excess(lambda x: model(x, y.expand(len(x), -1)), 10_000).max()) > 1e-3


def test_picnn_gradient_and_dependence() -> None:
    torch.manual_seed(0)
    model = convex.PICNN(3, 4, (8, 8)).double()
    x, y, z = torch.randn(100, 3).double(), torch.randn(100, 4).double(), torch.randn(100, 4).double()
    inner = ((model.gradient(x, y) - model.gradient(x, z)) * (y - z)).sum(-1)
    assert float(inner.min().detach()) >= -1e-12
    # It starts with a gradient in y, and one in x.
    assert float(model.gradient(x, y).norm(dim=1).min().detach()) > 1e-2
    shifted = model(x + 1, y) - model(x, y)
    assert float(shifted.abs().max().detach()) > 1e-3


def test_saved_and_condensed_picnn() -> None:
    torch.manual_seed(0)
    first, second = convex.PICNN(2, 3, (4, 4)), convex.PICNN(2, 3, (4, 4))
    second.load_state_dict(first.state_dict())
    x, y = torch.randn(5, 2), torch.randn(5, 3)
    assert torch.equal(first(x, y), second(x, y))
    torch.testing.assert_close(lnn.condense(first)(x, y), first(x, y))


@pytest.mark.parametrize(
    "activation", [nn.Tanh(), nn.GELU(), nn.LeakyReLU(2.0), nn.ELU(1.5), nn.Softplus(-1.0), nn.ReLU6()], ids=repr
)
def test_activations_that_are_not_convex_and_rising_are_refused(activation: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match="convex, non-decreasing"):
        convex.ICNN(3, (4,), activation=activation)


@pytest.mark.parametrize(
    "activation", [convex.CumulativeMax(4), convex.GroupMax(4), convex.GroupLogSumExp(4, 0.3)], ids=repr
)
def test_groups(activation: Any) -> None:
    """Values by hand, slopes >= 0, and the stated constants in l2."""
    torch.manual_seed(0)
    z = torch.randn(50, 8, dtype=torch.float64)
    groups = z.reshape(50, 2, 4)
    expected = {
        convex.CumulativeMax: groups.cummax(-1).values.flatten(1),
        convex.GroupMax: groups.max(-1).values,
        convex.GroupLogSumExp: 0.3 * torch.logsumexp(groups / 0.3, -1),
    }[type(activation)]
    torch.testing.assert_close(activation(z), expected)
    jacobians = torch.func.vmap(torch.func.jacrev(activation))(z)
    assert float(jacobians.min()) >= 0
    limit = 2.0 if isinstance(activation, convex.CumulativeMax) else 1.0
    assert float(torch.linalg.matrix_norm(jacobians, 2).max()) <= limit + 1e-12
    assert activation.width(8) == expected.shape[1]


def test_refusals() -> None:
    with unchecked(), pytest.raises(ArgumentError, match="without negative entries"):
        convex.ICNN(3, method=lnn.Bjorck())  # pyright: ignore[reportArgumentType] - what is refused
    with pytest.raises(ArgumentError, match="multiple of 4"):
        convex.ICNN(3, (6, 6))
    with pytest.raises(ArgumentError, match="hidden layers"):
        convex.PICNN(3, 3, ())
    number: Any = 8
    with unchecked(), pytest.raises(ArgumentError, match=r"such as \(32, 32\), got 3 and 8"):
        convex.ICNN(3, number)
    with pytest.raises(ArgumentError, match="5 features, and the network of 3"):
        convex.ICNN(3, base=convex.ConvexQuadratic(5))
    with pytest.raises(ShapeError, match=r"ICNN\(3\)"):
        convex.ICNN(3, (4,))(torch.zeros(2, 4))
    with unchecked(), pytest.raises(ShapeError, match="takes"):
        convex.PICNN(2, 3, (4,))(torch.zeros(2, 2), torch.zeros(3, 3))
    with pytest.raises(ArgumentError, match="add a multiple of the identity"):
        convex.ConvexQuadratic.between_gaussians(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2), torch.eye(2))
