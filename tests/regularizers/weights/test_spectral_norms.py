"""Penalties on layer norms against dense decompositions, and what training with them does."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.linops import materialize
from lipkit.norms import SVD, Circulant, Gram, Power
from lipkit.regularizers import LogNormSum, NormHinge, NormSum, SquaredNormSum, layers_of
from lipkit.regularizers.weights.spectral_norms import SpectralPenalty


def model_of(dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 4)
    ).to(dtype)


REFERENCES: list[tuple[SpectralPenalty, Callable[[list[float]], float]]] = [
    (NormSum(norm=SVD()), sum),
    (SquaredNormSum(norm=SVD()), lambda s: sum(x * x for x in s) / 2),
    (LogNormSum(norm=SVD()), lambda s: sum(float(torch.tensor(x, dtype=torch.float64).log()) for x in s)),
    (NormHinge(0.9, norm=SVD()), lambda s: sum(max(x, 0.9) for x in s)),
]


@pytest.mark.parametrize(("penalty", "formula"), REFERENCES, ids=lambda p: type(p).__name__)
def test_values_are_those_of_dense_decompositions(penalty: SpectralPenalty, formula: Callable[..., float]) -> None:
    layers = layers_of(model_of(), torch.zeros(1, 2, 4, 4, dtype=torch.float64))
    norms = [float(torch.linalg.svdvals(materialize(layer.operator()).detach())[0]) for layer in layers]
    assert min(norms) < 0.9 < max(norms)
    # Bounds are rounded up by some hundred units of 2^-53.
    assert float(penalty(layers).detach()) == pytest.approx(formula(norms), rel=1e-12)


@pytest.mark.parametrize(("penalty", "formula"), REFERENCES, ids=lambda p: type(p).__name__)
def test_gradients_are_those_of_the_values(penalty: SpectralPenalty, formula: Callable[..., float]) -> None:
    model = model_of()
    layers = layers_of(model, torch.zeros(1, 2, 4, 4, dtype=torch.float64))
    penalty(layers).backward()
    weight = model[3].weight
    torch.manual_seed(1)
    direction = torch.randn_like(weight)
    values: list[float] = []
    h = 1e-6
    for side in (h, -h):
        with torch.no_grad():
            moved = copy.deepcopy(model)
            moved[3].weight.add_(side * direction)
        dense = layers_of(moved, torch.zeros(1, 2, 4, 4, dtype=torch.float64))
        values.append(formula([float(torch.linalg.svdvals(materialize(x.operator()).detach())[0]) for x in dense]))
    assert weight.grad is not None
    # Central differences: h^2 and rounding 1e-16/h.
    assert float((weight.grad * direction).sum()) == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-7)


def test_the_gradient_is_the_outer_product_of_singular_vectors() -> None:
    torch.manual_seed(0)
    layer: Any = nn.Linear(6, 5).double()
    u, s, v = torch.linalg.svd(layer.weight.detach())
    outer = torch.outer(u[:, 0], v[0])
    for penalty, factor in ((NormSum, 1.0), (SquaredNormSum, float(s[0])), (LogNormSum, 1 / float(s[0]))):
        # 2^12 powers leave (sigma_2/sigma_1)^4096 of the other directions.
        found = penalty(norm=Gram(11))(layers_of(layer, torch.zeros(1, 6, dtype=torch.float64)))
        (gradient,) = torch.autograd.grad(found, [layer.weight])
        assert torch.allclose(gradient, factor * outer, atol=1e-9)


def test_the_hinge_leaves_small_layers_alone() -> None:
    model = model_of()
    layers = layers_of(model, torch.zeros(1, 2, 4, 4, dtype=torch.float64))
    with torch.no_grad():
        model[3].weight.mul_(0.1)
        model[5].weight.mul_(10)
    NormHinge(1.0)(layers).backward()
    assert model[3].weight.grad is not None
    assert not bool(model[3].weight.grad.any())
    assert float(torch.linalg.matrix_norm(model[5].weight.grad)) == pytest.approx(1.0, abs=0.05)


def test_training_with_the_hinge_ends_at_the_target() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    layers = layers_of(model, torch.zeros(1, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        NormHinge(1.0)(layers).backward()
        optimizer.step()
    values = [float(torch.linalg.svdvals(layer.weight.detach())[0]) for layer in (model[0], model[2])]
    # The last step was a whole one, and the norm it looked at 6^(1/128), 1.4 %, above the truth.
    assert all(0.88 < value <= 1.0 for value in values)


@pytest.mark.parametrize("norm", [Power(200), Circulant(Gram(8))], ids=str)
def test_any_kind_of_norm_may_be_trained_on(norm: Power | Circulant) -> None:
    layer: Any = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular").double()
    layers = layers_of(layer, torch.zeros(1, 2, 5, 5, dtype=torch.float64))
    truth = float(torch.linalg.svdvals(materialize(layers[0].operator()).detach())[0])
    found = NormSum(norm=norm)(layers)
    assert float(found.detach()) == pytest.approx(truth, rel=0.01)
    found.backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_weights_are_measured_wide(dtype: torch.dtype) -> None:
    model = model_of(dtype)
    wide = copy.deepcopy(model).double()
    found = NormSum()(layers_of(model, torch.zeros(1, 2, 4, 4, dtype=dtype)))
    expected = NormSum()(layers_of(wide, torch.zeros(1, 2, 4, 4, dtype=torch.float64)))
    # The same numbers, converted without error.
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    found.backward()
    assert model[3].weight.grad is not None
    assert model[3].weight.grad.dtype == dtype


def test_zero_layers() -> None:
    layer: Any = nn.Linear(3, 3)
    nn.init.zeros_(layer.weight)
    layers = layers_of(layer, torch.zeros(1, 3))
    with pytest.raises(NonFiniteError, match="norm 0"):
        LogNormSum()(layers)
    NormSum()(layers).backward()
    assert layer.weight.grad is not None
    assert not bool(layer.weight.grad.any())


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    layer: Any = nn.Linear(4, 3).double()
    layers = layers_of(layer, torch.zeros(1, 4, dtype=torch.float64))

    def gradient(weight: Tensor) -> Tensor:
        with torch.no_grad():
            layer.weight.copy_(weight)
        return torch.autograd.grad(NormSum(norm=Gram(10))(layers), [layer.weight])[0]

    start = layer.weight.detach().clone()
    torch.manual_seed(1)
    direction = torch.randn_like(start)
    (first,) = torch.autograd.grad(NormSum(norm=Gram(10))(layers), [layer.weight], create_graph=True)
    (second,) = torch.autograd.grad((first * direction).sum(), [layer.weight])
    h = 1e-6
    expected = (gradient(start + h * direction) - gradient(start - h * direction)) / (2 * h)
    assert torch.allclose(second, expected, atol=1e-6)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="positive"):
        NormHinge(0.0)
    with pytest.raises(ArgumentError, match="no layers"):
        NormSum()([])
