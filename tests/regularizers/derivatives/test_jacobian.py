"""Jacobian penalties against Jacobians written out by torch.func."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.regularizers import (
    DirichletEnergy,
    ExactJacobian,
    Hutchinson,
    JacobianPenalty,
    JacobianSymmetry,
    StochasticSymmetry,
)


def model_of(outputs: int) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def points() -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def jacobians(model: nn.Module, x: Tensor) -> list[Any]:
    return [torch.autograd.functional.jacobian(model, one) for one in x]


@pytest.mark.parametrize("outputs", [1, 3])
def test_exact_values(outputs: int) -> None:
    model, x = model_of(outputs), points()
    norms = [float(j.norm()) for j in jacobians(model, x)]
    assert float(JacobianPenalty(ExactJacobian())(model, x).detach()) == pytest.approx(
        sum(n * n for n in norms) / 3, rel=1e-12
    )
    assert float(DirichletEnergy()(model, x).detach()) == pytest.approx(sum(n * n for n in norms) / 3, rel=1e-12)
    assert float(DirichletEnergy(1)(model, x).detach()) == pytest.approx(sum(norms) / 3, rel=1e-12)


def test_linear_maps_in_closed_form() -> None:
    layer: Any = nn.Linear(4, 3).double()
    size = float(layer.weight.detach().norm())
    assert float(DirichletEnergy(1)(layer, points()).detach()) == pytest.approx(size, rel=1e-12)
    assert float(DirichletEnergy(2)(layer, points()).detach()) == pytest.approx(size**2, rel=1e-12)


def test_random_projections_are_unbiased() -> None:
    model, x = model_of(3), points()
    draws = 4000
    each = JacobianPenalty(Hutchinson(draws, torch.Generator().manual_seed(0))).each(model, x)
    for found, jacobian in zip(each.detach(), jacobians(model, x), strict=True):
        gram = jacobian @ jacobian.mT
        # v'G v has mean trace G and variance 2 ||G||_F^2; five standard deviations.
        deviation = math.sqrt(2 * float(gram.square().sum()) / draws)
        assert abs(float(found) - float(gram.trace())) < 5 * deviation
    again = JacobianPenalty(Hutchinson(draws, torch.Generator().manual_seed(0))).each(model, x)
    assert torch.equal(each, again)


def rotation(angle: float) -> nn.Linear:
    layer: Any = nn.Linear(2, 2).double()
    c, s = math.cos(angle), math.sin(angle)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[c, -s], [s, c]], dtype=torch.float64))
    return layer


def test_symmetry_in_closed_form() -> None:
    x = torch.randn(3, 2, dtype=torch.float64)
    for angle in (0.0, 0.3, math.pi / 2):
        # J - J' = 2 sin [[0, -1], [1, 0]].
        expected = 2 * math.sqrt(2) * math.sin(angle)
        assert float(JacobianSymmetry()(rotation(angle), x).detach()) == pytest.approx(expected, abs=1e-12)
        squared = JacobianSymmetry(squared=True)(rotation(angle), x)
        assert float(squared.detach()) == pytest.approx(expected**2, abs=1e-12)


def test_gradient_fields_have_no_penalty_and_others_do() -> None:
    w = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradient = lambda x: torch.tanh(x @ w.mT) @ w  # noqa: E731
    assert float(JacobianSymmetry()(gradient, points()).detach()) < 1e-13
    assert float(StochasticSymmetry()(gradient, points()).detach()) < 1e-26
    assert float(JacobianSymmetry()(model_of(4), points()).detach()) > 0.1


def test_symmetry_values_are_those_of_written_out_jacobians() -> None:
    model, x = model_of(4), points()
    parts = [j - j.mT for j in jacobians(model, x)]
    expected = sum(float(p.norm()) for p in parts) / 3
    assert float(JacobianSymmetry()(model, x).detach()) == pytest.approx(expected, rel=1e-12)
    draws = 2000
    found = StochasticSymmetry(Hutchinson(draws, torch.Generator().manual_seed(0)))(model, x)
    squares = sum(float(p.square().sum()) for p in parts) / 3
    deviation = math.sqrt(sum(2 * float((p.mT @ p).square().sum()) for p in parts) / 9 / draws)
    assert abs(float(found.detach()) - squares) < 5 * deviation


@pytest.mark.parametrize("name", ["exact", "hutchinson", "energy", "symmetry", "stochastic symmetry"])
def test_training_gradients_are_those_of_the_values(name: str) -> None:
    model, x = model_of(4), points()

    def value() -> Tensor:
        generator = torch.Generator().manual_seed(3)
        penalties = {
            "exact": JacobianPenalty(ExactJacobian()),
            "hutchinson": JacobianPenalty(Hutchinson(2, generator)),
            "energy": DirichletEnergy(1),
            "symmetry": JacobianSymmetry(),
            "stochastic symmetry": StochasticSymmetry(Hutchinson(2, generator)),
        }
        return penalties[name](model, x)

    weight = model[0].weight
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (found,) = torch.autograd.grad(value(), [weight])
    values: list[float] = []
    h = 1e-5
    for step in (h, -h):
        with torch.no_grad():
            weight.add_(step * direction)
        values.append(float(value().detach()))
        with torch.no_grad():
            weight.sub_(step * direction)
    # Central differences: h^2 times a third derivative.
    assert float((found * direction).sum()) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-6, abs=1e-8)


def test_narrow_types_and_images() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).bfloat16()
    x = torch.randn(4, 2, 4, 4).bfloat16()
    found = JacobianPenalty()(model, x)
    assert found.dtype == torch.float32
    found.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    field: Any = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh())
    assert float(StochasticSymmetry()(field, torch.randn(2, 2, 4, 4)).detach()) > 0


def test_without_gradients_only_values() -> None:
    model, x = model_of(4), points()
    with torch.no_grad():
        for penalty in (JacobianPenalty(ExactJacobian()), DirichletEnergy(1), JacobianSymmetry(), StochasticSymmetry()):
            assert not penalty(model, x).requires_grad


def test_misuse_is_refused() -> None:
    with pytest.raises(ShapeError, match="square"):
        JacobianSymmetry()(model_of(3), points())
    with pytest.raises(ArgumentError, match="1 or 2"):
        DirichletEnergy(3)
    with pytest.raises(ArgumentError, match="draws"):
        Hutchinson(0)
