"""The heat map of waves: a model that sees one wave only, and waves that are orthonormal."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis.frequencies.fourier_heat_map import _waves
from lipkit.errors import ArgumentError, ShapeError
from support.unchecked import unchecked


class OneWave(nn.Module):
    """Class 1 if the images hold more than nothing of a wave."""

    def __init__(self, wave: Tensor) -> None:
        super().__init__()
        self.register_buffer("wave", wave)

    def forward(self, images: Tensor) -> Tensor:
        assert isinstance(self.wave, Tensor)
        seen = (images * self.wave).sum((1, 2, 3))
        return torch.stack([-seen, seen], 1)


@pytest.mark.parametrize(("height", "width"), [(5, 6), (4, 4), (3, 5)])
def test_waves_are_an_orthonormal_basis_with_one_frequency_each(height: int, width: int):
    every = [(u, v) for u in range(height) for v in range(width)]
    half = [(u, v) for u, v in every if (u, v) <= (-u % height, -v % width)]
    flat = torch.stack([wave for u, v in half for wave in _waves(height, width, u, v) if wave.any()]).flatten(1)
    # Sums of at most 30 products.
    assert torch.allclose(flat @ flat.mT, torch.eye(height * width, dtype=torch.float64), atol=1e-14)
    for u, v in every:
        energy = torch.fft.fft2(_waves(height, width, u, v)[0]).abs().square()
        energy[u, v] = energy[-u % height, -v % width] = 0
        assert float(energy.max()) < 1e-25


@pytest.mark.parametrize(("height", "width", "u", "v"), [(5, 6, 1, 2), (4, 4, -2, 1), (4, 6, 0, 0), (4, 4, -2, -2)])
def test_only_the_wave_that_a_model_sees_makes_it_err(height: int, width: int, u: int, v: int):
    seen, beside = _waves(height, width, u, v)
    signs = torch.arange(400) % 2 * 2 - 1
    # Each image holds 1 of the wave, with the sign of its class, on one of two channels.
    images = torch.zeros(400, 2, height, width, dtype=torch.float64)
    images[:, 0] = signs[:, None, None] * seen
    model = OneWave(torch.stack([seen, 0 * seen])).train()
    found = analysis.fourier_heat_map(model, images, (signs + 1) // 2, 2.0, batch=64)
    assert model.training
    assert found.clean == 0
    assert (found.down[0], found.across[0]) == (-(height // 2), -(width // 2))
    # Length 2 over two channels moves the first by 2^(1/2) cos p; it errs below -1, for a quarter of all phases, and
    # with a sign alone for half of them.
    share = 0.25 if bool(beside.any()) else 0.5
    for a, row in enumerate(found.down.tolist()):
        for b, column in enumerate(found.across.tolist()):
            own = any((row - s * u) % height == 0 and (column - s * v) % width == 0 for s in (1, -1))
            # Four standard errors of a share of 400.
            margin = 4 * math.sqrt(share * (1 - share) / 400) if own else 0
            assert float(found.errors[a, b]) == pytest.approx(share if own else 0, abs=margin)
    # A shorter wave flips nothing: 1.4 / 2^(1/2) < 1.
    assert float(analysis.fourier_heat_map(model, images, (signs + 1) // 2, 1.4).errors.max()) == 0


def test_numbers_that_are_no_answers_are_errors():
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.full((len(images), 2), math.nan)

    found = analysis.fourier_heat_map(Broken(), torch.zeros(3, 2, 2), torch.zeros(3, dtype=torch.int64), 1.0)
    assert found.clean == 1
    assert bool((found.errors == 1).all())


def test_bad_input_is_refused():
    images, labels = torch.zeros(3, 1, 4, 4), torch.zeros(3, dtype=torch.int64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with unchecked(), pytest.raises(ShapeError, match="One label"):
        analysis.fourier_heat_map(model, images, labels[:2], 1.0)
    for length in (0.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="length"):
            analysis.fourier_heat_map(model, images, labels, length)
    with pytest.raises(ArgumentError, match=r"0\.\.1"):
        analysis.fourier_heat_map(model, images, labels + 2, 1.0)
