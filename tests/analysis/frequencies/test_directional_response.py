"""Responses along one direction: closed forms, grids, and the order in which a network learns two waves."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from support.unchecked import unchecked


def test_a_constant_on_gaussian_data_has_the_transform_of_the_density():
    x = torch.randn(40_000, 3, generator=torch.Generator().manual_seed(0))
    t = torch.linspace(-0.6, 0.6, 24)
    found = analysis.directional_response(x, torch.ones(len(x)), t, torch.tensor([1.0, 2.0, -2.0]))
    expected = torch.exp(-2 * math.pi**2 * t.double().square())
    # 4.5 standard errors of each of 24 complex means.
    assert bool(((found.coefficients - expected).abs() <= 4.5 * found.standard_errors).all())
    assert float(found.standard_errors.max()) == pytest.approx(1 / 200, rel=0.01)
    torch.testing.assert_close(found.contributions, 2 * math.pi * t.double().abs() * found.coefficients.abs())


def test_a_wave_on_a_grid_has_one_line_on_each_side():
    x = torch.arange(64, dtype=torch.float64) / 64
    points = torch.stack([0.6 * x, 0.8 * x], 1)
    values = 3 * torch.cos(2 * math.pi * 5 * x + 0.7)
    t = torch.arange(-10.0, 11.0)
    found = analysis.directional_response(points, values, t, torch.tensor([0.6, 0.8]))
    size, phase = torch.zeros(2, 21, dtype=torch.float64)
    size[[5, 15]], phase[5], phase[15] = 1.5, -0.7, 0.7
    expected = torch.polar(size, phase)
    # Sums of 64 terms; the direction is rounded to float32.
    assert torch.allclose(found.coefficients, expected, atol=1e-5)


def test_the_first_principal_component_is_the_default():
    x = torch.randn(300, 2, 3, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 5.0, 1.0]) + 7
    found = analysis.directional_response(x, torch.ones(300), torch.zeros(1))
    values, vectors = np.linalg.eigh(np.cov(x.flatten(1).double().numpy().T))
    # float64 on both sides; the gap of the variances is a few per cent of them.
    assert abs(float(found.direction @ torch.from_numpy(vectors[:, -1].copy()))) == pytest.approx(1, abs=1e-12)
    assert float(found.direction[found.direction.abs().argmax()]) > 0
    assert values[-1] > values[-2]


@pytest.mark.train
def test_a_network_learns_the_lower_of_two_waves_first():
    torch.manual_seed(0)
    x = torch.linspace(0, 1, 129)[:-1, None]
    target = (torch.sin(2 * math.pi * x) + torch.sin(2 * math.pi * 3 * x))[:, 0]
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows: list[Tensor] = []
    for _ in range(1200):
        optimizer.zero_grad()
        left = target - model(2 * x - 1)[:, 0]
        left.square().mean().backward()
        optimizer.step()
        found = analysis.directional_response(x, left, torch.tensor([1.0, 3.0]), torch.ones(1))
        rows.append(2 * found.coefficients.abs())
    low, high = torch.stack(rows).unbind(1)
    # Amplitudes of the residual begin near those of the target, 1. The last step at which one is above a half:
    ends = [int((one > 0.5).nonzero().max()) for one in (low, high)]
    assert min(float(low[0]), float(high[0])) > 0.8
    assert float(high[-1]) < 0.5
    assert ends[0] < ends[1] / 3
    assert float(high[ends[0] + 1]) > 0.8


def test_the_printed_network_does_not_take_images_of_mnist():
    image = torch.rand(2, 1, 28, 28)
    for width in (768, 784):
        layers = nn.Linear(width, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10), nn.LogSoftmax(1)
        model = nn.Sequential(nn.Flatten(), *layers)
        if width == 768:
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                model(image)
        else:
            true = model(image)[:, 3].detach().exp()
            response = analysis.directional_response(image.flatten(1), true, torch.tensor([0.0]), torch.ones(784))
            assert float(response.coefficients[0].real) == pytest.approx(float(true.mean()), rel=1e-6)


def test_bad_input_is_refused():
    x, t = torch.randn(5, 2), torch.zeros(1)
    with unchecked(), pytest.raises(ShapeError, match="One value"):
        analysis.directional_response(x, torch.ones(4), t)
    with unchecked(), pytest.raises(ShapeError, match="direction"):
        analysis.directional_response(x, torch.ones(5), t, torch.ones(3))
    with pytest.raises(NonFiniteError):
        analysis.directional_response(x, torch.full((5,), math.nan), t)
    with pytest.raises(ArgumentError, match="length"):
        analysis.directional_response(x, torch.ones(5), t, torch.zeros(2))
    with pytest.raises(ArgumentError, match="all alike"):
        analysis.directional_response(torch.ones(5, 2), torch.ones(5), t)
