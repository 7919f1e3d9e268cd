"""Gaps between singular values, and the drift of the largest under gradient steps."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.linops import materialize
from lipkit.norms import SVD, Gram
from lipkit.regularizers import (
    GapBetween,
    GapGoal,
    GapOfExtremes,
    SpectralGap,
    SpectrumAlignment,
    layers_of,
    remove_growth_,
)
from lipkit.regularizers.weights.norm_growth import PenalizedDrift, SingularDirections
from lipkit.regularizers.weights.spectral_gap import singular_values


def linear(rows: int, cols: int, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(cols, rows).double()


def layers(model: nn.Module, *shape: int):
    return layers_of(model, torch.zeros(1, *shape, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_gaps_are_differences_of_singular_values(shape: tuple[int, int]) -> None:
    layer: Any = linear(*shape)
    u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
    for pair, i, j in ((GapOfExtremes(), 0, 2), (GapBetween(1, 2), 0, 1), (GapBetween(2, 3), 1, 2)):
        found = SpectralGap(pair)(layers(layer, shape[1]))
        assert float(found.detach()) == pytest.approx(float(s[i] - s[j]), rel=1e-12)
        (gradient,) = torch.autograd.grad(found, [layer.weight])
        assert torch.allclose(gradient, torch.outer(u[:, i], v[i]) - torch.outer(u[:, j], v[j]), atol=1e-12)
    opened = SpectralGap(goal=GapGoal.OPEN)(layers(layer, shape[1]))
    assert float(opened.detach()) == pytest.approx(float(s[2] - s[0]), rel=1e-12)


def test_the_smallest_is_the_smallest_that_is_not_zero() -> None:
    layer: Any = linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([3.0, 2.0, 0.5, 0.0])))
    assert float(SpectralGap()(layers(layer, 4)).detach()) == pytest.approx(2.5, rel=1e-14)
    nn.init.zeros_(layer.weight)
    found = SpectralGap()(layers(layer, 4))
    found.backward()
    assert float(found.detach()) == 0.0
    with pytest.raises(ArgumentError, match="nonzero"):
        SpectralGap(GapBetween(1, 2))(layers(layer, 4))


def test_zero_if_and_only_if_all_are_equal() -> None:
    layer: Any = linear(5, 3)
    assert float(SpectralGap()(layers(layer, 3)).detach()) > 0.1
    with torch.no_grad():
        layer.weight.copy_(2.5 * torch.linalg.qr(layer.weight)[0])
    assert float(SpectralGap()(layers(layer, 3)).detach()) < 1e-14


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_have_the_singular_values_of_their_matrix(stride: int, groups: int) -> None:
    torch.manual_seed(0)
    conv: Any = nn.Conv2d(2, 4, 3, stride=stride, padding=1, padding_mode="circular", groups=groups).double()
    op = layers(conv, 2, 6, 6)[0].operator()
    dense = torch.linalg.svdvals(materialize(op).detach())
    found = singular_values(op).detach()
    assert float(found[0]) == pytest.approx(float(dense[0]), rel=1e-12)
    assert float(found[-1]) == pytest.approx(float(dense[dense > 1e-12][-1]), rel=1e-10)
    # Every one of them is a singular value of the matrix.
    assert float((found[:, None] - dense).abs().amin(1).max()) < 1e-12


def test_training_on_the_gap_whitens() -> None:
    layer: Any = linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        SpectralGap()(layers(layer, 4)).backward()
        optimizer.step()
    # Steps of 0.01 on either end.
    assert float(SpectralGap()(layers(layer, 4)).detach()) < 0.04


class Problem:
    """A small classifier with a loss, in float64."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.x = torch.randn(6, 4, dtype=torch.float64)
        self.y = torch.randint(3, (6,))
        self.layers = layers(self.model, 4)

    def loss(self) -> Tensor:
        return functional.cross_entropy(self.model(self.x), self.y)


def test_the_drift_is_the_slope_of_the_norm_along_a_gradient_step() -> None:
    problem = Problem()
    drifts = [float(d.detach()) for d in SpectrumAlignment(norm=SVD()).drifts(problem.loss(), problem.layers)]
    relative = SpectrumAlignment(norm=SVD(), relative=True).drifts(problem.loss(), problem.layers)
    weights = [problem.model[0].weight, problem.model[2].weight]
    gradients = torch.autograd.grad(problem.loss(), weights)
    h = 1e-6
    for drift, rate, weight, gradient in zip(drifts, relative, weights, gradients, strict=True):
        values = [float(torch.linalg.svdvals(weight.detach() - step * gradient)[0]) for step in (h, -h)]
        assert drift == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-8)
        size = float(torch.linalg.svdvals(weight.detach())[0])
        assert float(rate.detach()) == pytest.approx(drift / size, rel=1e-9)
    penalty = SpectrumAlignment(norm=SVD())(problem.loss(), problem.layers)
    assert float(penalty.detach()) == pytest.approx(sum(abs(d) for d in drifts), rel=1e-12)
    growth = SpectrumAlignment(norm=SVD(), counted=PenalizedDrift.GROWTH)(problem.loss(), problem.layers)
    assert float(growth.detach()) == pytest.approx(sum(max(d, 0.0) for d in drifts), rel=1e-12)


def by_hand(problem: Problem, held: list[Tensor] | None = None) -> float:
    """sum |u'(grad L) v|, with directions computed by a decomposition or held."""
    weights = [problem.model[0].weight, problem.model[2].weight]
    gradients = torch.autograd.grad(problem.loss(), weights)
    total = 0.0
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        u, _, v = torch.linalg.svd(weight.detach())
        direction = torch.outer(u[:, 0], v[0]) if held is None else held[i]
        total += abs(float((direction * gradient).sum()))
    return total


@pytest.mark.parametrize("directions", SingularDirections)
@pytest.mark.parametrize("norm", [SVD(), Gram(11)], ids=str)
def test_the_derivative_is_exact_or_leaves_out_the_directions(directions: SingularDirections, norm: SVD | Gram) -> None:
    problem = Problem()
    weights = [problem.model[0].weight, problem.model[2].weight]
    held: list[Tensor] | None = None
    if directions is SingularDirections.DETACHED:
        held = []
        for weight in weights:
            u, _, v = torch.linalg.svd(weight.detach())
            held.append(torch.outer(u[:, 0], v[0]))
    found = torch.autograd.grad(SpectrumAlignment(directions, norm=norm)(problem.loss(), problem.layers), weights)
    h = 1e-5
    for weight, gradient in zip(weights, found, strict=True):
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        values: list[float] = []
        for step in (h, -h):
            with torch.no_grad():
                weight.add_(step * direction)
            values.append(by_hand(problem, held))
            with torch.no_grad():
                weight.sub_(step * direction)
        # Central differences h^2; the Hessian of sigma_1 is found by conjugate gradients to about 1e-8.
        assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-6)


def test_the_derivative_through_a_convolution() -> None:
    torch.manual_seed(0)
    conv = nn.Conv1d(2, 3, 3, padding=1).double()
    found = layers(conv, 2, 6)
    x = torch.randn(4, 2, 6, dtype=torch.float64)

    def penalty() -> Tensor:
        return SpectrumAlignment()(conv(x).square().mean(), found)

    (gradient,) = torch.autograd.grad(penalty(), [conv.weight])
    direction = torch.randn(conv.weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h, values = 1e-5, []
    for step in (h, -h):
        with torch.no_grad():
            conv.weight.add_(step * direction)
        values.append(float(penalty().detach()))
        with torch.no_grad():
            conv.weight.sub_(step * direction)
    assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-7)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_surgery_takes_out_its_share_of_the_drift(share: float) -> None:
    problem = Problem()
    before = [float(d.detach()) for d in SpectrumAlignment(norm=SVD()).drifts(problem.loss(), problem.layers)]
    problem.loss().backward()
    remove_growth_(problem.layers, share, norm=SVD())
    h = 1e-6
    for layer, drift in zip((problem.model[0], problem.model[2]), before, strict=True):
        gradient = layer.weight.grad
        values = [float(torch.linalg.svdvals(layer.weight.detach() - s * gradient)[0]) for s in (h, -h)]
        # With share 1 the first-order change of sigma_1 is zero.
        assert (values[0] - values[1]) / (2 * h) == pytest.approx((1 - share) * drift, abs=1e-8)


def test_surgery_on_growth_only_spares_what_shrinks() -> None:
    problem = Problem()
    drifts = [float(d.detach()) for d in SpectrumAlignment(norm=SVD()).drifts(problem.loss(), problem.layers)]
    problem.loss().backward()
    before = [layer.weight.grad.clone() for layer in (problem.model[0], problem.model[2])]
    remove_growth_(problem.layers, counted=PenalizedDrift.GROWTH, norm=SVD())
    for layer, gradient, drift in zip((problem.model[0], problem.model[2]), before, drifts, strict=True):
        assert torch.equal(layer.weight.grad, gradient) == (drift <= 0)
        layer.weight.grad = -gradient
    remove_growth_(problem.layers, counted=PenalizedDrift.GROWTH, norm=SVD())
    for layer, gradient, drift in zip((problem.model[0], problem.model[2]), before, drifts, strict=True):
        assert torch.equal(layer.weight.grad, -gradient) == (drift >= 0)


def test_surgery_on_a_convolution_stops_its_norm() -> None:
    torch.manual_seed(0)
    conv: Any = nn.Conv2d(2, 3, 3, padding=1).double()
    found = layers(conv, 2, 5, 5)
    conv.weight.grad = torch.randn_like(conv.weight)
    remove_growth_(found, norm=SVD())
    h = 1e-6
    values: list[float] = []
    for step in (h, -2 * h):
        with torch.no_grad():
            conv.weight.sub_(step * conv.weight.grad)
        values.append(float(torch.linalg.svdvals(materialize(found[0].operator()).detach())[0]))
    assert abs(values[0] - values[1]) / (2 * h) < 1e-7


def test_layers_without_gradient_are_left_alone() -> None:
    problem = Problem()
    remove_growth_(problem.layers)
    assert all(p.grad is None for p in problem.model.parameters())


def test_misuse_is_refused() -> None:
    with pytest.raises(ArgumentError, match="share"):
        remove_growth_([], 2.0)
    with pytest.raises(ArgumentError, match="no layers"):
        SpectrumAlignment()(torch.zeros(()), [])
    with pytest.raises(ArgumentError, match="no layers"):
        SpectralGap()([])
    with pytest.raises(ArgumentError, match="first < second"):
        GapBetween(2, 2)
