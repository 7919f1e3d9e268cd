"""Norms of kernels on inputs of every size, against fine grids and long signals."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit import nn as lnn
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.every_size import norm_on_every_size
from lipkit.nn.methods._arithmetic.symbol_supremum import on_grid, supremum

AXES = [(5,), (2,), (31,), (3, 3), (2, 4), (5, 1), (3, 2, 3)]


def largest(kernel: Tensor, points: int) -> float:
    """max ||E(w)|| over a whole grid, by sums over taps and numpy's decomposition: no code of the library."""
    taps = kernel.shape[3:]
    grid = [torch.arange(points, dtype=torch.float64) * (2 * math.pi / points) for _ in taps]
    turns = torch.zeros(*(points,) * len(taps), math.prod(taps), dtype=torch.float64)
    for place, at in enumerate(product(*map(range, taps))):
        for axis, a in enumerate(at):
            shape = [1] * len(taps)
            shape[axis] = points
            turns[..., place] += (a * grid[axis]).reshape(shape)
    waves = torch.polar(torch.ones_like(turns), -turns).reshape(-1, math.prod(taps))
    symbols = torch.einsum("ft,grct->fgrc", waves, kernel.flatten(3).to(torch.complex128))
    return float(torch.linalg.svdvals(symbols).max())


FINE = {1: 4096, 2: 96, 3: 24}


def kernels(seed: int, taps: tuple[int, ...], rows: int, cols: int, groups: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    kernel = torch.randn(groups, rows, cols, *taps, dtype=torch.float64, generator=generator)
    return kernel / kernel.flatten(1).norm(dim=1).max()


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**16),
    taps=st.sampled_from(AXES),
    sides=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    points=st.sampled_from([0, 100, 3000]),
)
def test_the_supremum_is_never_exceeded(
    seed: int, taps: tuple[int, ...], sides: tuple[int, int, int], points: int
) -> None:
    kernel = kernels(seed, taps, *sides)
    truth = largest(kernel, FINE[len(taps)])
    for limit in (0.0, 0.9 * truth, 1.1 * truth, 10.0):
        found = supremum(kernel, limit, points)
        assert found.upper >= truth * (1 - 1e-12)
        assert found.lower <= found.upper
    assert on_grid(kernel, 0.05, 10**6) >= truth * (1 - 1e-12)


def test_the_search_is_sharp_and_stops() -> None:
    for taps in AXES[:-1]:
        kernel = kernels(1, taps, 2, 3, 1)
        found = supremum(kernel, 0.0, 20000)
        assert found.upper <= found.lower * (1 + 2e-4)
        # Without signs the symbol is largest at zero, where it is the sum of the taps.
        truth = float(torch.linalg.matrix_norm(kernel[0].flatten(2).abs().sum(-1), 2))
        assert supremum(kernel.abs(), truth * (1 + 1e-6), 20000).upper <= truth * (1 + 1e-6)
        assert supremum(kernel.abs(), truth * (1 - 1e-6), 20000).upper >= truth
    assert on_grid(kernels(1, (3, 3), 2, 2, 1), 1e-3, 100) == math.inf


@pytest.mark.parametrize("degree", [1, 2])
def test_waves_across_the_axes_reach_the_bound(degree: int) -> None:
    # cos(w1 + w2) falls off from its maximum as fast as anything can.
    kernel = torch.zeros(1, 1, 1, 1 + 2 * degree, 1 + 2 * degree, dtype=torch.float64)
    kernel[..., 0, 0] = kernel[..., -1, -1] = 0.5
    for points in (0, 200, 5000):
        assert supremum(kernel, 0.0, points).upper >= 1
    assert supremum(kernel, 0.0, 20000).upper <= 1.001


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    tall=st.booleans(),
    padding=st.integers(0, 3),
)
def test_layers_are_bounded_on_signals_of_every_length(
    seed: int, stride: int, dilation: int, tall: bool, padding: int
) -> None:
    torch.manual_seed(seed)
    rows, cols, taps = (3, 1, 4) if tall else (1, 2, 5)
    geometry = Geometry(1, rows, cols, (taps,), (stride,), ((padding, padding),), (dilation,))
    blocks = torch.randn(geometry.shape, dtype=torch.float64)
    layer = torch.nn.Conv1d(cols, rows, taps, stride, padding, dilation, bias=False, dtype=torch.float64)
    norms: list[float] = []
    for length in (20, 200):
        with torch.no_grad():
            layer.weight.copy_(geometry.join(blocks))
            images = layer(torch.eye(cols * length, dtype=torch.float64).reshape(-1, cols, length)).flatten(1)
        norms.append(float(torch.linalg.matrix_norm(images, 2)))
    truth = max(norms)
    # Proven at one where the norm on all lengths is a little below, never where it is above on one of them.
    assert norm_on_every_size(blocks / (truth * (1 - 1e-9)), geometry, 1.0) > 1
    assert norm_on_every_size(blocks / (truth * 1.02), geometry, 1.0) <= 1


def test_zeros_and_matrices() -> None:
    nothing = torch.zeros(2, 3, 3, 3, dtype=torch.float64)
    assert norm_on_every_size(nothing, Geometry(2, 3, 3, (3,), (1,), ((0, 0),), (1,)), 1.0) == 0
    matrix = torch.randn(1, 70, 80, dtype=torch.float64)
    sharp = matrix / torch.linalg.matrix_norm(matrix, 2)
    assert norm_on_every_size(sharp * (1 - 2e-7), Geometry(1, 70, 80), 1.0) <= 1
    assert norm_on_every_size(sharp * (1 + 1e-12), Geometry(1, 70, 80), 1.0) > 1


def test_weights_of_rescaling_are_proven_by_their_sums() -> None:
    # A symbol that is large everywhere needs no fine grid: the method's own argument proves it.
    torch.manual_seed(0)
    for method in (lnn.AOL(), lnn.AOL(lnn.RescaledSide.SMALLER), lnn.Rescale(2), lnn.Rescale(3)):
        geometry = Geometry(1, 6, 4, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
        raw = method.start(geometry).double() + 1e-5 * torch.randn(geometry.shape, dtype=torch.float64)
        assert 1 - 1e-3 < norm_on_every_size(method(raw, geometry), geometry, 1 + 1e-6) <= 1 + 1e-6
