"""Scattering2d against dense Jacobians, dense operators, sums over pixels, and what it promises about energy."""

import math

import pytest
import torch
from torch import Tensor

import lipkit
from lipkit import nn as lnn
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.scattering.energy_bound import scattering_constant

SETTINGS = ((8, 2, 4), (16, 2, 8), ((8, 16), 3, 6), ((12, 4), 2, 5), (10, 1, 1), (4, 2, 8), (28, 2, 8))


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def jacobian(layer: lnn.Scattering2d, x: Tensor) -> Tensor:
    return torch.func.jacrev(lambda z: layer(z[None])[0].flatten())(x).flatten(1)


def mean_by_sums(layer: lnn.Scattering2d, image: Tensor) -> Tensor:
    """A, one product at a time: the kernel begins at the first pixel of each square."""
    height, width = layer.in_size
    step = 2**layer.scales
    found = torch.zeros(height // step, width // step, dtype=torch.float64)
    for i in range(height // step):
        for j in range(width // step):
            for a in range(height):
                for b in range(width):
                    weight = layer.rows[(a - step * i) % height] * layer.columns[(b - step * j) % width]
                    found[i, j] += weight * image[a, b]
    return found


def wave_by_sums(wavelet: Tensor, image: Tensor) -> Tensor:
    """psi x as a double sum over pixels, with psi in the pixels from the definition of the Fourier transform."""
    height, width = image.shape
    rows, columns = (torch.arange(n, dtype=torch.float64) for n in (height, width))
    turn = torch.outer(rows, rows)[:, None, :, None] / height + torch.outer(columns, columns)[None, :, None, :] / width
    kernel = (wavelet * torch.exp(2j * math.pi * turn)).sum((2, 3)) / (height * width)
    found = torch.zeros(height, width, dtype=torch.complex128)
    for a in range(height):
        for b in range(width):
            found += image[a, b] * kernel.roll((a, b), (0, 1))
    return found


def test_paths_are_sums_over_pixels() -> None:
    layer = lnn.Scattering2d((8, 12), 2, 3).double()
    x = images(8, 12)
    y = layer(x[None, None])[0]
    assert y.shape == (layer.paths, 2, 3) == (1 + 6 + 9, 2, 3)
    torch.testing.assert_close(y[0], mean_by_sums(layer, x))
    for scale, angle in ((0, 2), (1, 1)):
        wave = wave_by_sums(layer.wavelets[scale, angle], x).abs()
        torch.testing.assert_close(y[1 + 3 * scale + angle], mean_by_sums(layer, wave))
    twice = wave_by_sums(layer.wavelets[1, 0], wave_by_sums(layer.wavelets[0, 2], x).abs()).abs()
    torch.testing.assert_close(y[7 + 3 * 2 + 0], mean_by_sums(layer, twice))


def test_channels_keep_their_paths_together() -> None:
    layer = lnn.Scattering2d(8, 3, 2).double()
    x = images(2, 3, 8, 8)
    y = layer(x)
    assert y.shape == (2, 3 * (1 + 6 + 4 * 3), 1, 1)
    torch.testing.assert_close(y[1, layer.paths : 2 * layer.paths], layer(x[1:, 1:2])[0])
    torch.testing.assert_close(layer(x[0]), y[0])


@pytest.mark.parametrize(("size", "scales", "angles"), SETTINGS)
def test_wavelets_and_mean_have_no_more_energy_than_the_image(
    size: int | tuple[int, int], scales: int, angles: int
) -> None:
    layer = lnn.Scattering2d(size, scales, angles).double()
    assert layer.gain <= 1
    height, width = layer.in_size
    squares = layer.wavelets.square().sum((0, 1))
    flipped = squares[[-i % height for i in range(height)]][:, [-i % width for i in range(width)]]
    mean = (torch.fft.fft(layer.rows).abs()[:, None] * torch.fft.fft(layer.columns).abs()).square()
    total = mean / mean[0, 0] + (squares + flipped) / 2
    # Above zero: wavelets were scaled by 1 - 2^-20 and rounded to float32.
    assert float(total.max()) <= 1
    assert bool((layer.wavelets[..., 0, 0] == 0).all())
    # The finest wavelets are as large as that allows.
    others = mean.reshape(-1)[1:] / mean[0, 0], (squares + flipped).reshape(-1)[1:] / 2
    assert float((others[1] / (1 - others[0])).max()) > 1 - 1e-5


@pytest.mark.parametrize(
    ("size", "scales", "angles"),
    [SETTINGS[0], pytest.param(*SETTINGS[1], marks=pytest.mark.slow), *SETTINGS[2:4]],
)
def test_jacobians_stay_below_the_constant_and_come_near_it(
    size: int | tuple[int, int], scales: int, angles: int
) -> None:
    layer = lnn.Scattering2d(size, scales, angles).double()
    constant = layer.gain
    largest = 0.0
    for seed, (spread, level) in enumerate(((1.0, 0.0), (0.1, 5.0), (1e-6, 0.0))):
        x = images(1, *layer.in_size, seed=seed) * spread + level
        largest = max(largest, float(torch.linalg.matrix_norm(jacobian(layer, x), 2)))
    # The decomposition itself is good to some hundred units in the last place.
    assert largest <= constant * (1 + 1e-13)
    assert largest >= 0.85 * constant


def test_the_bound_is_that_of_dense_operators() -> None:
    layer = lnn.Scattering2d((8, 4), 2, 3).double()
    basis = torch.eye(32, dtype=torch.float64).reshape(32, 8, 4)
    mean = torch.stack([mean_by_sums(layer, e).flatten() for e in basis], 1)
    waves = [[torch.stack([wave_by_sums(w, e).flatten() for e in basis], 1) for w in scale] for scale in layer.wavelets]
    # Real images: the real part of the Gram matrix.
    grams = [sum((w.mH @ w).real for w in scale) for scale in waves]
    low = mean.mT @ mean

    def top(matrix: Tensor) -> float:
        return float(torch.linalg.eigvalsh(matrix)[-1])

    last = top(low)
    first = top(low + last * grams[1])
    truth = math.sqrt(top(low + first * grams[0] + last * grams[1]))
    found = scattering_constant(layer.wavelets, layer.rows, layer.columns, 4)
    # Slacks of 2^-40 for each of three levels.
    assert truth * (1 - 1e-13) <= found <= truth * (1 + 1e-11)


def test_pairs_of_images_near_and_far() -> None:
    layer = lnn.Scattering2d(16).double()
    x = images(64, 1, 16, 16) * torch.logspace(-3, 2, 64, dtype=torch.float64).reshape(-1, 1, 1, 1)
    y = x + images(64, 1, 16, 16, seed=1) * torch.logspace(1, -3, 64, dtype=torch.float64).reshape(-1, 1, 1, 1)
    moved = (layer(x) - layer(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    # Differences of numbers 1e5 times as large lose so many digits.
    assert float(moved.max()) <= layer.gain * (1 + 1e-9)


def test_moves_of_the_torus_move_the_result() -> None:
    layer = lnn.Scattering2d((16, 8)).double()
    x = images(2, 1, 16, 8)
    torch.testing.assert_close(layer(x.roll((4, -8), (2, 3))), layer(x).roll((1, -2), (2, 3)))
    # One pixel less is no move of the coarse grid.
    assert not torch.allclose(layer(x.roll((3, -8), (2, 3))), layer(x).roll((1, -2), (2, 3)), atol=1e-3)


@pytest.mark.parametrize("level", [0.0, 1.0, -3.0])
def test_constant_images_have_derivatives(level: float) -> None:
    layer = lnn.Scattering2d(8).double()
    x = torch.full((1, 1, 8, 8), level, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    # Wavelets are zero at frequency zero; transforms leave rounding errors.
    assert float(y[:, 1:].detach().abs().max()) <= 1e-12
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert bool(torch.isfinite(gradient).all())
    if level == 0:
        kept = layer.rows.sum() / 4 * layer.columns.sum() / 4
        torch.testing.assert_close(gradient.sum() / 64, kept)
    assert float(torch.linalg.matrix_norm(jacobian(layer, x.detach()[0]), 2)) <= layer.gain


def test_in_other_types() -> None:
    layer = lnn.Scattering2d(16)
    x = images(4, 2, 16, 16)
    exact = lnn.Scattering2d(16, dtype=torch.float64)(x)
    # Filters and transforms in 24 binary digits.
    torch.testing.assert_close(layer(x.float()).double(), exact, rtol=1e-4, atol=2e-5)
    half = layer.to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    assert half.gain <= 1.02
    torch.testing.assert_close(half(x.bfloat16()).double(), exact, rtol=0.05, atol=0.05)


def test_the_tracer_believes_it() -> None:
    model = torch.nn.Sequential(lnn.Scattering2d(8, 2, 3), torch.nn.Flatten(), lnn.Linear(16 * 4, 5)).eval()
    x = images(1, 1, 8, 8).float()
    bound = lipkit.lipschitz(model, x)
    assert bound.kind is Kind.UPPER
    assert float(bound.value.detach()) <= 1
    plain = lnn.condense(model)
    torch.testing.assert_close(plain(x), model(x))
    assert not [name for name, _ in model[0].named_parameters()]
    assert set(model[0].state_dict()) == {"wavelets", "rows", "columns"}


@pytest.mark.parametrize("size", [7, (8, 6), 0])
def test_sizes_that_cannot_be_halved_are_refused(size: int | tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="multiples of 4"):
        lnn.Scattering2d(size)


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="scales >= 1"):
        lnn.Scattering2d(8, 0)
    layer = lnn.Scattering2d(8)
    with pytest.raises(ShapeError, match="in_size of your images"):
        layer(torch.zeros(1, 1, 8, 12))
    with pytest.raises(ShapeError, match="in_size of your images"):
        layer.declared_lipschitz((8, 8))
    with pytest.raises(ArgumentError, match="real floating-point"):
        layer(torch.zeros(1, 1, 8, 8, dtype=torch.int64))
