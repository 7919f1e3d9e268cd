"""Spectral normalisation from above, and kernels orthogonalised as matrices."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.symbol_norm import norm_above, schatten
from lipkit.nn.methods._base import Promise
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.rko import RKO, overlap
from lipkit.nn.methods.spectral_normalization import Spectral
from lipkit.nn.residual.linear_residual import LinearResidual, identity
from support.layers.checks import singular_values
from support.unchecked import unchecked

METHODS = [Spectral(), Spectral(steps=2, slack=0.2), RKO()]


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def conv(rows: int, cols: int, taps: int, stride: int = 1, dilation: int = 1) -> Geometry:
    return Geometry(1, rows, cols, (taps,), (stride,), ((0, 0),), (dilation,))


@pytest.mark.parametrize("rows", [8, 40])
@pytest.mark.parametrize("cols", [8, 40])
def test_matrices_come_within_a_percent_of_one(rows: int, cols: int) -> None:
    weight = Spectral()(drawn((1, rows, cols)), Geometry(1, rows, cols))
    assert 0.99 < float(torch.linalg.matrix_norm(weight[0], 2)) <= 1


@pytest.mark.parametrize("stride", [1, 2])
def test_kernels_come_within_two_percent_of_one(stride: int) -> None:
    """On a large torus, whose frequencies come near the supremum; by the fast Fourier transform."""
    geometry = Geometry(1, 6, 5, (3, 3), (stride, stride), ((1, 1), (1, 1)), (1, 1))
    weight = Spectral()(drawn(geometry.shape), geometry)[0]
    size = 48
    symbol = torch.fft.fft2(weight, s=(size, size)).permute(2, 3, 0, 1)
    # Decimation adds up the frequencies that fall together: their blocks stand side by side.
    step = size // stride
    parts = [symbol[i * step : (i + 1) * step, j * step : (j + 1) * step] for i in range(stride) for j in range(stride)]
    values = torch.linalg.svdvals(torch.cat(parts, -1) / stride)
    assert 0.98 < float(values.max()) <= 1


def test_schatten_is_above_the_svd_and_sharp_for_isometries() -> None:
    for seed in range(10):
        matrix = drawn((3, 9, 6), seed)
        other = drawn((3, 9, 6), seed + 100)
        exact = torch.linalg.svdvals(torch.complex(matrix, other)).amax(-1)
        for steps in (1, 3, 6):
            assert bool((schatten(matrix, other, steps) >= exact).all())
    orthogonal = torch.linalg.qr(drawn((1, 30, 30)))[0]
    assert 1 <= float(schatten(orthogonal, None, 6)) < 1 + 1e-10


def test_worst_kernels_of_the_grid() -> None:
    """cos(d w) shifted so that its maximum falls between grid points: the factor 1/cos is needed."""
    for taps in (2, 3, 5):
        for phase in torch.linspace(0, 3, 7):
            kernel = torch.cos(torch.arange(taps, dtype=torch.float64) * 0.37 + phase).reshape(1, 1, 1, taps)
            symbol = torch.fft.fft(kernel, n=4096).abs().max()
            for slack in (0.5, 0.1, 0.01):
                bound = float(norm_above(kernel, 8, slack))
                assert float(symbol) <= bound <= float(symbol) * (1 + slack) * 1.001


@pytest.mark.parametrize("geometry", [Geometry(1, 3, 4), conv(2, 3, 3), conv(3, 2, 4, stride=2)], ids=str)
def test_gradients(geometry: Geometry) -> None:
    raw = drawn(geometry.shape, 3).requires_grad_()
    for method in (Spectral(steps=3), RKO(Bjorck(steps=4))):
        assert torch.autograd.gradcheck(lambda r, m=method: m(r, geometry), raw)
    small = drawn((1, 2, 2)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda r: Spectral(steps=3)(r, Geometry(1, 2, 2)), small)


@pytest.mark.parametrize("method", [*METHODS, LinearResidual()], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1e-37, 1e30])
def test_degenerate_numbers(method: lnn.WeightMethod, scale: float) -> None:
    geometry = conv(3, 3, 3)
    raw = (scale * drawn(geometry.shape)).float().requires_grad_()
    weight = method(raw, geometry)
    weight.square().sum().backward()
    assert raw.grad is not None
    assert bool(torch.isfinite(weight).all())
    assert bool(torch.isfinite(raw.grad).all())


@pytest.mark.parametrize("geometry", [Geometry(1, 3, 4), conv(2, 3, 3), conv(3, 2, 4, stride=2)], ids=str)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_inverse_on_the_range(method: lnn.WeightMethod, geometry: Geometry) -> None:
    weight = method(drawn(geometry.shape), geometry)
    again = method(method.inverse(weight, geometry), geometry)
    # Each pass stores with a factor 1 - 2^-39; Björck has converged to 1e-9.
    torch.testing.assert_close(again, weight, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rows", [2, 12])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_rko_promises_isometries_where_they_are(rows: int, mode: Literal["zeros", "circular"]) -> None:
    """Every kernel, stride, dilation and padding: where an isometry is promised, all singular values are one."""
    promised = 0
    for taps in (1, 2, 3, 4):
        for stride in (1, 2, 3):
            for dilation in (1, 2, 3):
                for padding in {0, dilation * (taps - 1) // 2}:
                    layer = lnn.Conv1d(
                        2, rows, taps, stride, padding, dilation, padding_mode=mode, bias=False, method=RKO()
                    )
                    if RKO().promise(layer.geometry) is Promise.CONTRACTION:
                        continue
                    promised += 1
                    sizes = (12,) if mode == "circular" and padding else (12, 13)
                    for size in sizes:
                        assert float(singular_values(layer, (2, size))[-1]) > 1 - 2e-5, (taps, stride, dilation)
    assert promised >= 3


def test_rko_factor_under_dilation() -> None:
    """The factor ceil(k/s) leaves norms above one: 1.5 for k 3, s 2, d 2; ceil(k gcd(s, d)/s) does not."""
    geometry = Geometry(1, 1, 1, (3, 3), (2, 2), ((0, 0), (0, 0)), (2, 2))
    assert overlap(geometry) == 9
    ones = torch.full((1, 1, 3, 3), 1 / 3, dtype=torch.float64)
    layer = lnn.Conv2d(1, 1, 3, 2, 0, 2, bias=False, method=RKO(), dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("parametrizations.weight.original").copy_(ones)
    norm = float(singular_values(layer, (1, 41, 41))[0])
    assert 0.95 < norm <= 1
    # As printed: divided by ceil(3/2) = 2 instead of 3.
    assert norm * 3 / 2 > 1.4


def test_rko_refuses_nothing_that_its_matrix_method_takes_and_knows_feasible_weights() -> None:
    geometry = conv(2, 3, 2, stride=2)
    made = RKO()(drawn(geometry.shape), geometry)
    assert RKO().promise(geometry) is Promise.ISOMETRY
    assert RKO().is_feasible(made, geometry)
    assert not RKO().is_feasible(0.5 * made, geometry)
    assert not RKO().is_feasible(1.1 * made, geometry)
    torch.manual_seed(0)
    start = RKO().start(conv(4, 3, 3))
    assert math.isclose(float(start.flatten(2)[0].norm()), math.sqrt(4 / 3), rel_tol=1e-5)


def test_rko_by_a_contraction_promises_no_isometry() -> None:
    geometry = conv(2, 3, 2, stride=2)
    clipped = RKO(lnn.SingularClip())
    # Half of an isometry is a contraction that clipping leaves alone: its singular values are not one.
    made = clipped(0.5 * RKO()(drawn(geometry.shape), geometry), geometry)
    assert float(torch.linalg.svdvals(made.flatten(2)).max()) < 0.6
    assert clipped.promise(geometry) is Promise.CONTRACTION


def test_methods_inside_others_are_checked() -> None:
    wrong: list[Any] = [lnn.AOL(), lnn.Cayley, "cayley"]
    for inner in wrong:
        with unchecked(), pytest.raises(ArgumentError, match=r"RKO.inner must be a method for matrices"):
            RKO(inner)
    for inner in [*wrong, lnn.SingularClip()]:
        for method in (lnn.AOC, lnn.BCOP):
            with unchecked(), pytest.raises(ArgumentError, match="inner needs a method for orthogonal matrices"):
                method(inner)


def test_linear_residual() -> None:
    geometry = Geometry(2, 3, 3, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    zero = LinearResidual()(torch.zeros(geometry.shape, dtype=torch.float64), geometry)
    # Q = 0 is the identity, less the slack of the grid.
    torch.testing.assert_close(zero, identity(geometry, zero), rtol=0.011, atol=0)
    layer = lnn.Conv2d(3, 3, 3, padding=1, method=LinearResidual())
    assert 0.95 < float(singular_values(layer, (3, 6, 6))[0]) <= 1
    weight = LinearResidual()(drawn(geometry.shape), geometry)
    again = LinearResidual()(LinearResidual().inverse(weight, geometry), geometry)
    torch.testing.assert_close(again, weight, rtol=1e-9, atol=1e-12)
    with pytest.raises(UnsupportedError, match="as many outputs as inputs"):
        lnn.Linear(3, 4, method=LinearResidual())


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="steps"):
        Spectral(steps=0)
    with pytest.raises(ArgumentError, match="slack"):
        Spectral(slack=2.0)
    with pytest.raises(ArgumentError, match="slack"):
        LinearResidual(slack=2.0)
