"""Energies by frequency, and changes of predictions."""

import math

import pytest
import torch
from torch import nn

from lipkit import analysis
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def test_white_noise_is_flat_and_energies_sum():
    x = torch.randn(2000, 1, 9, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    density = analysis.energy_density(x).mean(0)
    # At least one frequency in 2000 images: five standard errors of 4 (2/2000)^(1/2).
    assert float((density - 4).abs().max()) < 0.64
    counts = torch.zeros(density.shape, dtype=torch.float64)
    for u in range(-4, 5):
        for v in range(-6, 6):
            counts[round(math.hypot(u, v))] += 1
    torch.testing.assert_close(analysis.energy_density(x) @ counts, x.square().sum((1, 2, 3)))


def test_the_printed_transform_scales_white_noise():
    x = torch.randn(2000, 1, 9, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    printed = torch.fft.fft2(x).abs().square().mean()
    # A mean over 2000 images of 108 pixels: standard error (2 / 216000)^(1/2) of it, 0.3 %.
    assert float(printed) == pytest.approx(9 * 12 * 4, rel=0.015)
    # Ours, at the radius 0, which has one frequency: five standard errors of 4 (2/2000)^(1/2).
    assert float(analysis.energy_density(x)[:, 0].mean()) == pytest.approx(4, abs=0.64)


def test_ratios_and_scaled_energy():
    x = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(analysis.spectral_snr(x, x).abs().max()) == 0
    torch.testing.assert_close(analysis.spectral_snr(x, 0.1 * x), torch.full((3, 7), 20.0, dtype=torch.float64))
    scaled = analysis.scale_energy(x.flip(0), x, 0.1)
    torch.testing.assert_close(
        scaled.square().sum((1, 2, 3)) / x.square().sum((1, 2, 3)), torch.full((3,), 0.1, dtype=torch.float64)
    )
    # What a blur takes away lies at high frequencies, so the image stands out at low ones.
    snr = analysis.spectral_snr(x, x - analysis.low_pass(x, 0.8) * 0.9)
    assert bool((snr[:, 0] > snr[:, 4]).all())
    with pytest.raises(ShapeError):
        analysis.spectral_snr(x, x[:, :1])
    with pytest.raises(NonFiniteError):
        analysis.spectral_snr(0 * x, 0 * x)
    with pytest.raises(ArgumentError, match="zero"):
        analysis.scale_energy(0 * x, x)


def test_mean_prediction_error():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.9), nn.Linear(4, 3)).double().train()
    x = torch.randn(7, 5, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    assert analysis.mean_prediction_error(model, x, x, y) == (0.0, 0.0)
    found = analysis.mean_prediction_error(model, x, 2 * x, y, batch=3)
    assert model.training
    model.eval()
    each = torch.tensor(
        [float((model(a).softmax(0) - model(2 * a).softmax(0))[b].detach().abs()) for a, b in zip(x, y, strict=True)]
    )
    assert math.isclose(found.value, float(each.mean()), rel_tol=1e-6)
    assert math.isclose(found.standard_error, float(each.std()) / math.sqrt(7), rel_tol=1e-5)
    with pytest.raises(ArgumentError, match="Labels"):
        analysis.mean_prediction_error(model, x, x, y + 1)


def test_small_perturbations_are_scaled_too():
    small = torch.full((1, 1, 2, 2), 1e-30)
    scaled = analysis.scale_energy(small, torch.ones(1, 1, 2, 2))
    assert float(scaled.square().sum()) == pytest.approx(0.4)
