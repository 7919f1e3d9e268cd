"""The supremum of a symbol from few frequencies, against fine grids and adversarial kernels."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Conv, Padding, materialize, symbol
from lipkit.norms import SVD, SmallGrid
from lipkit.norms.convolutions.symbol_grid import between, points_for


def kernel(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def conv(weight: Tensor, n: int, mode: Padding = Padding.ZEROS) -> Conv:
    """Large enough an image that the torus is never the smaller grid."""
    rank = weight.ndim - 2
    sides = tuple(((k - 1) // 2, k // 2) for k in weight.shape[2:])
    return Conv(weight, (n,) * rank, (1,) * rank, sides, (1,) * rank, 1, mode)


def supremum(weight: Tensor, n: int) -> float:
    """From below, on a grid of n points an axis."""
    rank = weight.ndim - 2
    blocks = torch.fft.fftn(weight, s=(n,) * rank, dim=tuple(range(2, 2 + rank)))
    return float(torch.linalg.svdvals(blocks.flatten(2).permute(2, 0, 1)).max())


@settings(max_examples=25)
@given(
    st.tuples(*(st.integers(1, most) for most in (3, 3, 5, 5))), st.sampled_from([5e-3, 0.1, 0.5]), st.integers(0, 99)
)
def test_bounds_the_supremum_within_its_tolerance(shape: tuple[int, ...], rtol: float, seed: int) -> None:
    weight = kernel(*shape, seed=seed)
    bound = float(SmallGrid(rtol, SVD())(conv(weight, 300)).value)
    fine = supremum(weight, 128)
    assert bound >= fine * (1 - 1e-13)
    # The fine grid itself is below the supremum by cos(pi d / 128)^2, half a percent at d = 2.
    assert bound <= fine * (1 + rtol) * 1.006


@pytest.mark.parametrize("taps", [2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("factor", [1.001, 1.05, 1.2, 3.0])
def test_the_fewest_points(taps: int, factor: float) -> None:
    degree = (taps - 1) / 2
    points = points_for(degree, factor)
    assert between(degree, points) <= factor
    # With one point fewer the factor exceeds what was asked for, or has no proof.
    assert points == taps or between(degree, points - 1) > factor


@pytest.mark.parametrize("taps", [2, 3, 4])
def test_the_factor_is_attained(taps: int) -> None:
    """cos(d (w - pi/n)) peaks between two points; for an even number of taps d is half an integer."""
    degree = (taps - 1) / 2
    points = points_for(degree, 1.2)
    w = 2 * math.pi * torch.arange(points, dtype=torch.float64) / points
    peak = math.pi / points
    on_grid = torch.cos(degree * (w - peak)).abs().max()
    assert 1 / float(on_grid) == pytest.approx(between(degree, points), rel=1e-12)
    # The kernel e^(i d w) cos(d (w - peak)) has two taps, both ends; in complex numbers it is a convolution.
    weight = torch.zeros(1, 1, taps, dtype=torch.complex128)
    end = 0.5 * torch.exp(torch.tensor(1j * degree * peak, dtype=torch.complex128))
    weight[..., 0], weight[..., -1] = end.conj(), end
    bound = SmallGrid(0.2, SVD())(conv(weight, 500)).value
    assert bound == pytest.approx(1, rel=1e-11)


def test_cost_does_not_grow_with_the_image_and_small_tori_are_their_own_grid() -> None:
    weight = kernel(2, 2, 3, 3)
    values = [float(SmallGrid(0.01, SVD())(conv(weight, n)).value) for n in (200, 400, 1000)]
    assert values[0] == values[1] == values[2]
    circular = conv(weight, 5, Padding.CIRCULAR)
    truth = float(torch.linalg.svdvals(materialize(circular))[0])
    # The five points of the torus are fewer than those of the grid, and exact.
    assert SmallGrid(0.01, SVD())(circular).value == pytest.approx(truth, rel=1e-12)


def test_mixed_axes_strides_and_dilation() -> None:
    weight = kernel(2, 2, 3, 4)
    for stride, dilation, spatial in (((1, 2), (2, 1), (40, 6)), ((2, 3), (1, 2), (7, 30)), ((1, 1), (3, 2), (9, 9))):
        op = Conv(weight, spatial, stride, ((2, 2), (3, 3)), dilation)
        truth = float(torch.linalg.svdvals(materialize(op))[0])
        for rtol in (1e-2, 0.3):
            assert SmallGrid(rtol)(op).value >= truth * (1 - 1e-13)


def test_taps_of_one_need_one_point() -> None:
    weight = kernel(4, 3, 1, 1)
    op = conv(weight, 100)
    assert symbol(op).taps == (1, 1)
    truth = float(torch.linalg.svdvals(weight[:, :, 0, 0])[0])
    assert SmallGrid(0.5, SVD())(op).value == pytest.approx(truth, rel=1e-12)


def test_gradient_against_differences() -> None:
    weight = kernel(2, 2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: SmallGrid(0.3, SVD())(conv(k, 50)).value, (weight,))


@pytest.mark.parametrize("rtol", [0.0, 1e-7, 1.0, float("nan")])
def test_refusals(rtol: float) -> None:
    with pytest.raises(ArgumentError, match=r"SmallGrid\.rtol"):
        SmallGrid(rtol)
