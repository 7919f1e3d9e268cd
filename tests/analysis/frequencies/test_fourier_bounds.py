"""Bounds from spectra against closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch

from lipkit import analysis
from lipkit.bound import Kind
from lipkit.errors import NonFiniteError, ShapeError


@pytest.mark.parametrize(("seed", "value"), [(1, 55.0446), (2, 64.5889), (3, 74.1315)])
def test_sines_reach_their_bound_at_zero(seed: int, value: float):
    source = np.random.RandomState(seed)
    a, w = (torch.from_numpy(source.uniform(*ends, 10)) for ends in ((0.1, 1), (0.1, 5)))
    bound = analysis.fourier_bound(a, w[:, None])
    assert bound.kind is Kind.UPPER
    slope = float((2 * math.pi * a * w).sum())
    assert slope <= float(bound.value) <= slope * (1 + 1e-12)
    assert abs(slope - value) < 6e-5
    # The same as pairs of complex coefficients.
    pairs = analysis.fourier_bound(torch.cat([-0.5j * a, 0.5j * a]), torch.cat([w, -w])[:, None])
    assert math.isclose(float(pairs.value), slope, rel_tol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("a", [0.5, 3.0])
def test_the_gaussian_has_its_closed_form_in_every_dimension(d: int, a: float):
    # exp(-a |x|^2) has the transform (pi/a)^(d/2) exp(-pi^2 r^2 / a); shells of radius r, trapezoidal rule.
    r = torch.linspace(0, 8 * math.sqrt(a) / math.pi, 4001, dtype=torch.float64)
    shell = 2 * math.pi ** (d / 2) / math.gamma(d / 2) * r ** (d - 1) * (r[1] - r[0])
    amplitudes = (math.pi / a) ** (d / 2) * torch.exp(-(math.pi**2) * r**2 / a) * shell
    found = float(analysis.fourier_bound(amplitudes, r[:, None]).value)
    closed = 2 * math.sqrt(a) * math.gamma((d + 1) / 2) / math.gamma(d / 2)
    # The rule's error is of the size of h^2 = 1e-5 at the left end for d = 1, and smaller beyond.
    assert math.isclose(found, closed, rel_tol=3e-5)
    if d == 2:
        assert math.isclose(closed, math.sqrt(math.pi * a))
        # The printed root of a is below the true integral, though above the constant.
        assert math.sqrt(a) < 0.6 * found
        assert math.isclose(math.sqrt(2 * a / math.e) / closed, 0.48394, rel_tol=1e-5)


def test_an_integrable_transform_need_not_give_a_finite_bound():
    """f = x^2 sin(1/x) exp(-x^2) is differentiable and has the constant 1.03, but its derivative jumps at 0."""
    t = torch.linspace(math.log(1e-3), math.log(4), 60_001, dtype=torch.float64)
    x, step = t.exp(), t[1] - t[0]  # sin(1/x) is slow in t
    weights = x**3 * torch.sin(1 / x) * torch.exp(-(x**2)) * step
    octaves: list[float] = []
    for start in (4, 16, 64, 256):
        frequencies = start * (1 + (torch.arange(32, dtype=torch.float64) + 0.5) / 32)
        transform = torch.stack([-2j * (weights * torch.sin(2 * math.pi * w * x)).sum() for w in frequencies])
        amplitudes = torch.cat([transform, -transform]) * start / 32
        places = torch.cat([frequencies, -frequencies])
        octaves.append(float(analysis.fourier_bound(amplitudes, places[:, None]).value))
    # |transform| falls as w^(-7/4), so octaves grow by 4^(1/4) for 4 times the frequency: their sum has no end.
    assert all(1.2 < b / a < 1.7 for a, b in itertools.pairwise(octaves))
    u = torch.linspace(1e-4, 3, 2_000_001, dtype=torch.float64)
    slope = torch.exp(-(u**2)) * (2 * (u - u**3) * torch.sin(1 / u) - torch.cos(1 / u))
    assert 1.03 < float(slope.abs().max()) < 1.031 < octaves[-1]


def test_small_and_large_numbers_do_not_vanish():
    tiny = torch.tensor([1e-200], dtype=torch.float64)
    assert float(analysis.fourier_bound(tiny, torch.tensor([[1e-200, 0.0]], dtype=torch.float64)).value) > 0
    found = analysis.fourier_bound(1 / tiny, torch.tensor([[3e-200, 4e-200]], dtype=torch.float64))
    assert math.isclose(float(found.value), 10 * math.pi, rel_tol=1e-12)


def test_bad_input_is_refused():
    with pytest.raises(ShapeError):
        analysis.fourier_bound(torch.ones(2), torch.ones(3, 1))
    with pytest.raises(NonFiniteError):
        analysis.fourier_bound(torch.tensor([math.nan]), torch.ones(1, 1))


@pytest.mark.parametrize(
    ("radius", "sharp", "coarse", "printed"),
    [(0.05, 0.01274, 0.01620, 0.18275), (0.2, 0.19237, 0.33863, 0.95526), (0.8, 1.57706, 5.41811, 3.82105)],
)
def test_the_part_of_a_band_has_the_contributions_of_the_band(
    radius: float, sharp: float, coarse: float, printed: float
):
    # exp(-|x|^2) in the plane, frequencies in a ball around (0.4, 0), midpoint rule in polar coordinates.
    r = (torch.arange(400, dtype=torch.float64) + 0.5) / 400 * radius
    angle = (torch.arange(400, dtype=torch.float64) + 0.5) / 400 * 2 * math.pi
    w = torch.stack([0.4 + r[:, None] * angle.cos(), r[:, None] * angle.sin()], -1).flatten(0, 1)
    cell = (r[:, None] * (radius / 400) * (2 * math.pi / 400)).expand(400, 400).flatten()
    density = math.pi * torch.exp(-(math.pi**2) * w.square().sum(1))
    found = float(analysis.fourier_bound(density * cell, w).value)
    # The expected values come from another rule that is good to four digits; this one converges to 1.57712 for 0.8.
    assert math.isclose(found, sharp, rel_tol=4e-4)
    largest = float((2 * math.pi * w.norm(dim=1) * density).max())
    volume = math.pi * radius**2
    assert math.isclose(largest * volume, coarse, rel_tol=2e-3)
    assert math.isclose(largest * math.sqrt(volume), printed, rel_tol=2e-3)
    assert found <= coarse
    # The printed form follows only where the volume is at most 1.
    assert (coarse <= printed) == (volume <= 1)
    # The part itself keeps the bound.
    x = torch.tensor([[0.0, 0.0], [0.1, 0.05]], dtype=torch.float64)
    part = (density * cell * torch.cos(2 * math.pi * x @ w.mT)).sum(1)
    assert abs(float(part[0] - part[1])) <= found * float(x[1].norm())


def test_a_band_of_the_input_is_no_band_of_the_function():
    # exp(-|x|^2) in the plane, where it is steepest; frequencies in a ball of radius 0.05 around (0.4, 0).
    x, step = torch.tensor([2**-0.5, 0.0], dtype=torch.float64), 1e-6
    moved = x + step * torch.tensor([1.0, 0.0], dtype=torch.float64)
    change = abs(float(torch.exp(-x.square().sum()) - torch.exp(-moved.square().sum()))) / step
    w = torch.linspace(0.35, 0.45, 1001, dtype=torch.float64)
    largest = float((2 * math.pi * w * math.pi * torch.exp(-((math.pi * w) ** 2))).max())
    volume = math.pi * 0.05**2
    assert change > 4 * largest * math.sqrt(volume)
    # The bound of the whole function holds: the contributions integrate to pi^(1/2).
    assert change < math.sqrt(math.pi)


def test_frequencies_below_the_normal_numbers_keep_their_length():
    least = 5e-324
    frequency = torch.full((1, 2), least, dtype=torch.float64)
    found = analysis.fourier_bound(torch.tensor([1e300], dtype=torch.float64), frequency)
    # 1e300 times the least number has all its digits; the length 2^(1/2) of it, rounded to a multiple, has not.
    assert float(found.value) >= 2 * math.pi * math.sqrt(2) * (1e300 * least) * (1 - 1e-15)
