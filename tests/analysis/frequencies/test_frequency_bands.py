"""Bands against a loop over the centred spectrum."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipkit import analysis
from lipkit.analysis.frequencies.frequency_bands import Rings
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def band_by_loop(height: int, width: int, count: int, euclidean: bool) -> Tensor:
    """The band of every frequency of the full transform, from exact fractions of squares."""
    found = torch.zeros(height, width, dtype=torch.long)
    for i in range(height):
        for j in range(width):
            u, v = min(i, height - i), min(j, width - j)
            band = 0
            for end in range(1, count):
                if euclidean:
                    beyond = 4 * count**2 * (u**2 * width**2 + v**2 * height**2) >= end**2 * height**2 * width**2
                else:
                    beyond = 2 * count * u >= end * height or 2 * count * v >= end * width
                band += beyond
            found[i, j] = band
    return found


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        (32, [9, 40, 72, 104, 136, 168, 200, 295]),
        (224, [729, 2296, 3864, 5432, 7000, 8568, 10136, 12151]),
    ],
)
def test_the_published_numbers_of_frequencies(size: int, counts: list[int]):
    # An impulse has a flat spectrum, so the pixel at its place is the share of frequencies of a band.
    impulse = torch.zeros(1, size, size, dtype=torch.float64)
    impulse[0, 0, 0] = 1
    shares = analysis.bands(impulse, 8)[:, 0, 0, 0] * size**2
    assert shares.round().tolist() == counts
    assert float((shares - shares.round()).abs().max()) < 1e-6


@given(st.integers(4, 9), st.integers(4, 9), st.integers(2, 3), st.sampled_from([False, True]), st.integers(0, 10**6))
def test_bands_are_the_filtered_images_of_a_full_transform(
    height: int, width: int, count: int, euclidean: bool, seed: int
):
    x = pictures(2, 3, height, width, seed=seed)
    rings: Rings = analysis.RoundRings() if euclidean else analysis.SquareRings()
    found = analysis.bands(x, count, rings)
    where = band_by_loop(height, width, count, euclidean)
    spectrum = torch.fft.fft2(x)
    for band in range(count):
        full = torch.fft.ifft2(spectrum * (where == band))
        # A transform of fewer than 100 entries is good to some 1e-15 of its size.
        assert float(full.imag.abs().max()) < 1e-13
        torch.testing.assert_close(found[band], full.real, atol=1e-13, rtol=0)
    torch.testing.assert_close(found.sum(0), x, atol=1e-13, rtol=0)
    # A projection: a part has nothing in other bands.
    torch.testing.assert_close(analysis.bands(found[0], count, rings)[0], found[0], atol=1e-13, rtol=0)


def test_single_precision_stays_and_the_mean_is_in_the_lowest_band():
    x = torch.full((1, 1, 8, 8), 2.5)
    found = analysis.bands(x, 4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0], x)
    assert float(found[1:].abs().max()) == 0


@pytest.mark.parametrize("rings", [analysis.SquareRings(), analysis.RoundRings()])
@pytest.mark.parametrize("cutoff", [0.0, 0.1, 0.29, 0.5, 1.0])
def test_low_and_high_frequencies_are_everything(rings: Rings, cutoff: float):
    x = pictures(3, 2, 7, 10)
    low, high = analysis.low_pass(x, cutoff, rings), analysis.high_pass(x, cutoff, rings)
    torch.testing.assert_close(low + high, x, atol=1e-13, rtol=0)
    assert float((low * high).sum().abs()) < 1e-10
    if cutoff == 0:
        torch.testing.assert_close(low, x.mean((2, 3), keepdim=True).expand_as(x), atol=1e-13, rtol=0)


def test_a_cutoff_of_one_keeps_squares_and_not_corners():
    x = pictures(1, 32, 32)
    torch.testing.assert_close(analysis.low_pass(x, 1.0), x, atol=1e-12, rtol=0)
    impulse = torch.zeros(1, 32, 32, dtype=torch.float64)
    impulse[0, 0, 0] = 1
    # 22.4 % of the spectrum lies outside of the unit circle: 229 of 1024 frequencies.
    lost = 1024 * float(analysis.high_pass(impulse, 1.0, analysis.RoundRings())[0, 0, 0])
    outside = sum(math.hypot(u, v) > 16 for u in range(-16, 16) for v in range(-16, 16))
    assert round(lost) == outside
    assert round(100 * outside / 1024, 1) == 22.4


def test_a_frequency_on_the_cutoff_is_kept_although_the_cutoff_is_rounded():
    # 29 of 100 cycles: 2 * 29 / 200 = 0.29, which is no binary fraction.
    wave = torch.cos(2 * math.pi * 29 * torch.arange(200, dtype=torch.float64) / 200).expand(1, 4, 200)
    torch.testing.assert_close(analysis.low_pass(wave, 0.29), wave, atol=1e-12, rtol=0)
    assert float(analysis.low_pass(wave, 0.289).abs().max()) < 1e-12


def test_a_kept_band_is_the_original_and_the_rest_another_image():
    x = pictures(5, 1, 8, 8)
    mixed = analysis.low_pass(x, 0.3, baseline=analysis.ReplacementBaseline(seed=3))
    torch.testing.assert_close(analysis.low_pass(mixed, 0.3), analysis.low_pass(x, 0.3), atol=1e-13, rtol=0)
    rest = analysis.high_pass(mixed, 0.3)
    apart = torch.stack([(rest[:, None] - analysis.high_pass(x, 0.3)[None]).flatten(2).norm(dim=2)])[0]
    chosen = apart.argmin(1)
    assert float(apart.min(1).values.max()) < 1e-12
    assert not bool((chosen == torch.arange(5)).any())


def test_gaussian_coefficients_have_the_stated_variance():
    noise = analysis.GaussianBaseline(2.0, seed=1).images(pictures(4000, 6, 6))
    spectrum = torch.fft.fft2(noise)
    # 4000 squares with mean 4; the standard error is at most 4 * (2 / 4000)^(1/2) = 0.09 at a frequency; five of them.
    assert float((spectrum.abs().square().mean(0) - 4).abs().max()) < 0.45
    assert abs(float(spectrum[:, 1, 2].real.square().mean()) - 2) < 0.25


@pytest.mark.parametrize(
    ("images", "count", "error"),
    [
        (torch.zeros(2, 8, 8), 1, ArgumentError),
        (torch.zeros(2, 4, 4), 8, ArgumentError),
        (torch.zeros(0, 8, 8), 4, ShapeError),
        (torch.full((2, 8, 8), math.nan), 4, NonFiniteError),
    ],
)
def test_what_has_no_bands_is_refused(images: Tensor, count: int, error: type[Exception]):
    with pytest.raises(error):
        analysis.bands(images, count)


@pytest.mark.parametrize("cutoff", [-0.1, math.nan, math.inf])
def test_a_cutoff_is_a_radius(cutoff: float):
    with pytest.raises(ArgumentError, match="cutoff"):
        analysis.low_pass(torch.zeros(1, 8, 8), cutoff)


def test_baselines_refuse_what_they_cannot_do():
    with pytest.raises(ArgumentError, match="two images"):
        analysis.ReplacementBaseline().images(torch.zeros(1, 8, 8))
    with pytest.raises(ArgumentError, match="deviation"):
        analysis.GaussianBaseline(0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_in_half_precision_have_the_bands_of_the_same_images(dtype: torch.dtype):
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = analysis.bands(x, 4)
    assert found.dtype == dtype
    # One rounding of the result.
    tolerance = torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), analysis.bands(x.float(), 4), rtol=tolerance, atol=1e-6)
    filtered = analysis.low_pass(x, 0.5)
    torch.testing.assert_close(filtered.float(), analysis.low_pass(x.float(), 0.5), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("rings", [analysis.SquareRings(), analysis.RoundRings()])
@pytest.mark.parametrize("size", [(8, 8), (5, 9), (6, 14), (2, 2)])
def test_too_many_bands_name_a_number_that_is_possible(rings: Rings, size: tuple[int, int]):
    euclidean, most = isinstance(rings, analysis.RoundRings), max(size) + 2
    possible = [n for n in range(2, most) if len(band_by_loop(*size, n, euclidean).unique()) == n]
    assert possible[0] == 2
    for count in range(3, most):
        if count in possible:
            analysis.bands(torch.zeros(1, *size), count, rings)
        else:
            smaller = max(n for n in possible if n < count)
            with pytest.raises(ArgumentError, match=f"the next smaller number that is possible is {smaller}\\."):
                analysis.bands(torch.zeros(1, *size), count, rings)
    if not euclidean and size[0] == size[1]:
        assert possible == list(range(2, size[0] // 2 + 2))


def test_one_pixel_has_no_bands():
    with pytest.raises(ArgumentError, match="take larger images"):
        analysis.bands(torch.zeros(1, 1, 1), 2)
