"""Penalties on input gradients against closed forms, explicit loops and finite differences."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import ArgumentError, ShapeError
from lipkit.regularizers import GradientPenalty, InputGradient, points_between
from lipkit.regularizers.derivatives.gradient_penalty import PenalizedSide


def critic(dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1)).to(dtype)


def points(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def norm_by_differences(model: nn.Module, x: Tensor) -> float:
    """The gradient norm of one sample by central differences, entry after entry."""
    h, total = 1e-6, 0.0
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = h
        step = step.reshape(x.shape)
        with torch.no_grad():
            slope = (model((x + step)[None]) - model((x - step)[None])) / (2 * h)
        total += float(slope) ** 2
    return total**0.5


@pytest.mark.parametrize("side", PenalizedSide)
@pytest.mark.parametrize("target", [0.0, 0.35, 1.0])
def test_values_are_those_of_a_loop(side: PenalizedSide, target: float) -> None:
    model, x = critic(), points()
    norms = [norm_by_differences(model, one) for one in x]
    excess = [n - target if side is PenalizedSide.TWO else max(0.0, n - target) for n in norms]
    expected = sum(e * e for e in excess) / len(excess)
    # Central differences: 1e-12 of truncation, 1e-10 of rounding.
    assert float(GradientPenalty(target, side)(model, x).detach()) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("side", PenalizedSide)
def test_a_linear_function_of_norm_one_has_no_penalty(side: PenalizedSide) -> None:
    layer: Any = nn.Linear(4, 1).double()
    with torch.no_grad():
        layer.weight.div_(layer.weight.norm())
    x = torch.randn(3, 4, dtype=torch.float64)
    assert float(GradientPenalty(side=side)(layer, x).detach()) < 1e-30
    with torch.no_grad():
        layer.weight.mul_(0.5)
    assert float(GradientPenalty(side=side)(layer, x).detach()) == pytest.approx(
        0.25 if side is PenalizedSide.TWO else 0.0
    )


def derivative(model: nn.Module, weight: Tensor, direction: Tensor, value) -> float:
    values: list[float] = []
    for h in (1e-5, -1e-5):
        with torch.no_grad():
            weight.add_(h * direction)
        values.append(float(value(model).detach()))
        with torch.no_grad():
            weight.sub_(h * direction)
    return (values[0] - values[1]) / 2e-5


@pytest.mark.parametrize("which", ["two-sided", "one-sided", "squares", "norms"])
def test_training_gradients_are_those_of_the_values(which: str) -> None:
    model, x = critic(), points()

    def value(m: nn.Module) -> Tensor:
        if which in ("squares", "norms"):
            loss = lambda y, t: functional.softplus(-t * y.flatten())  # noqa: E731
            return InputGradient(which == "squares")(m, x, torch.tensor([1.0, -1, 1, 1, -1]), loss)
        return GradientPenalty(0.3, PenalizedSide.TWO if which == "two-sided" else PenalizedSide.ONE)(m, x)

    for layer in (model[1], model[3]):
        weight = layer.weight
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        (found,) = torch.autograd.grad(value(model), [weight])
        expected = derivative(model, weight, direction, value)
        assert float((found * direction).sum()) == pytest.approx(expected, abs=1e-7)


def test_input_gradients_are_those_of_a_loop() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    target = torch.tensor([0, 2, 1, 1, 0])
    norms: list[float] = []
    for one, label in zip(x, target, strict=True):
        one = one.clone().requires_grad_()
        functional.cross_entropy(model(one[None]), label[None]).backward()
        assert one.grad is not None
        norms.append(float(one.grad.norm()))
    loss = nn.CrossEntropyLoss(reduction="none")
    squares = InputGradient()(model, x, target, loss)
    assert float(squares.detach()) == pytest.approx(sum(n * n for n in norms) / 10, rel=1e-12)
    plain = InputGradient(squared=False)(model, x, target, loss)
    assert float(plain.detach()) == pytest.approx(sum(norms) / 5, rel=1e-12)


def test_a_zero_gradient_has_a_finite_derivative() -> None:
    model = critic()
    nn.init.zeros_(model[3].weight)
    for penalty in (GradientPenalty(), GradientPenalty(0.0)):
        penalty(model, points()).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    model = critic(dtype)
    wide = copy.deepcopy(model).double()
    x = points(dtype)
    found = GradientPenalty()(model, x)
    assert found.dtype == torch.float32
    # The model itself rounds at 2^-8 or 2^-11; the penalty does not add to it.
    assert float(found.detach()) == pytest.approx(float(GradientPenalty()(wide, x.double()).detach()), rel=0.03)
    found.backward()
    assert all(p.grad is None or p.grad.dtype == dtype for p in model.parameters())


def test_segments_lie_between_their_ends() -> None:
    real, fake = torch.zeros(400, 2, 3), torch.ones(400, 2, 3)
    found = points_between(real, fake, torch.Generator().manual_seed(0))
    assert bool((found == found[:, :1, :1]).all())
    shares = found[:, 0, 0]
    assert bool(((shares >= 0) & (shares <= 1)).all())
    # Uniform: mean 1/2 and variance 1/12, five standard deviations each.
    assert abs(float(shares.mean()) - 0.5) < 5 * (1 / 12 / 400) ** 0.5
    assert abs(float(shares.var()) - 1 / 12) < 0.02
    assert torch.equal(found, points_between(real, fake, torch.Generator().manual_seed(0)))


def test_without_gradients_only_the_value_is_computed() -> None:
    model, x = critic(), points()
    with torch.no_grad():
        found = GradientPenalty()(model, x)
    assert not found.requires_grad
    assert torch.equal(found, GradientPenalty()(model, x).detach())


def test_the_graph_of_the_input_is_kept() -> None:
    model, source = critic(), points().requires_grad_()
    GradientPenalty()(model, 2 * source).backward()
    assert source.grad is not None
    assert bool(source.grad.any())


def test_misuse_is_refused() -> None:
    with pytest.raises(ShapeError, match="one number a sample"):
        GradientPenalty()(nn.Linear(3, 2), torch.zeros(4, 3))
    with pytest.raises(ShapeError, match="reduction"):
        InputGradient()(nn.Linear(3, 2), torch.zeros(4, 3), torch.zeros(4).long(), functional.cross_entropy)
    with pytest.raises(ArgumentError, match="floating-point"):
        GradientPenalty()(nn.Embedding(3, 1), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ArgumentError, match="differentiably"):
        GradientPenalty()(lambda x: x.detach().sum(1), torch.zeros(4, 3))
    with pytest.raises(ShapeError, match="batch axis"):
        GradientPenalty()(lambda x: x.sum(), torch.zeros(4, 3))
    with pytest.raises(ShapeError, match="pairs"):
        points_between(torch.zeros(3, 2), torch.zeros(4, 2))
    with pytest.raises(ArgumentError, match="target"):
        GradientPenalty(-1.0)
