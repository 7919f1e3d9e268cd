"""Published bounds of convolutions: the sound ones against dense matrices and fine grids."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Conv, LinearOperator, Padding, materialize
from lipkit.norms import FantasticFour, Gram, LipGrid, PublishedGrid, ReshapedKernel
from support.operators.conv_geometries import conv_operators, conv_transpose_operators


def norm(op: LinearOperator) -> float:
    return float(torch.linalg.svdvals(materialize(op)).max())


def kernel(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def conv(weight: Tensor, n: int = 8, mode: Padding = Padding.ZEROS) -> Conv:
    rank = weight.ndim - 2
    return Conv(weight, (n,) * rank, (1,) * rank, ((1, 1),) * rank, (1,) * rank, 1, mode)


def supremum(weight: Tensor) -> float:
    return float(torch.linalg.svdvals(torch.fft.fft2(weight, s=(240, 240)).permute(2, 3, 0, 1)).max())


@settings(max_examples=60)
@given(st.one_of(conv_operators(), conv_transpose_operators()))
def test_fantastic_four_bounds_every_geometry(op: LinearOperator) -> None:
    for method in (FantasticFour(), FantasticFour(Gram(5))):
        assert method(op).value >= norm(op) * (1 - 150 * 2.0**-53)


def test_fantastic_four_by_hand() -> None:
    weight = kernel(4, 3, 3, 2)
    shaped = [
        weight.permute(0, 2, 1, 3).reshape(12, 6),
        weight.permute(0, 3, 1, 2).reshape(8, 9),
        weight.reshape(4, 18),
        weight.permute(0, 2, 3, 1).reshape(24, 3),
    ]
    expected = 6**0.5 * min(float(torch.linalg.svdvals(one)[0]) for one in shaped)
    bound = FantasticFour()(conv(weight))
    assert bound.kind is Kind.UPPER
    # Slack of a 24 x 3 decomposition: below 1e-12.
    assert bound.value == pytest.approx(expected, rel=1e-12, abs=0)
    assert bound.value >= supremum(weight)


@settings(max_examples=60)
@given(st.one_of(conv_operators(), conv_transpose_operators()), st.sampled_from([8, 9, 20]))
def test_lip_grid_bounds_one_and_two_axes(op: LinearOperator, points: int) -> None:
    if len(op.in_shape) == 4:
        with pytest.raises(UnsupportedError, match="SmallGrid"):
            LipGrid(points)(op)
    else:
        assert LipGrid(points)(op).value >= norm(op) * (1 - 150 * 2.0**-53)


def test_lip_grid_by_hand_and_its_limit() -> None:
    weight = kernel(4, 3, 3, 3)
    on_grid = torch.linalg.vector_norm(torch.fft.fft2(weight, s=(20, 20)), dim=(0, 1)).max()
    bound = LipGrid(20)(conv(weight))
    assert bound.kind is Kind.UPPER
    # 1/(1 - 2d/S) with d = 1; the rest is rounding.
    assert bound.value == pytest.approx(float(on_grid) / (1 - 2 / 20), rel=1e-12, abs=0)
    # One channel: the Frobenius norm is the modulus, so the factor is all that is lost.
    single = kernel(1, 5, 3, 3)
    # 1 / (1 - 2/400) - 1 = 0.005 is the method's own excess on this grid.
    assert LipGrid(400)(conv(single)).value == pytest.approx(supremum(single), rel=6e-3)
    plain = kernel(4, 3, 1, 1)
    # No shift, so no factor: the slack of twelve squares and of the transform.
    assert LipGrid(4)(conv(plain)).value == pytest.approx(float(torch.linalg.vector_norm(plain)), rel=1e-12, abs=0)


def test_estimates_say_so_and_reproduce_their_formulas() -> None:
    weight = kernel(4, 3, 3, 3)
    reshaped = ReshapedKernel()(conv(weight))
    assert reshaped.kind is Kind.ESTIMATE
    assert reshaped.lower is None
    # Both are decompositions of a 4 x 27 matrix: 27 roundings of 1e-16 each, and the slack of ours.
    assert reshaped.value == pytest.approx(float(torch.linalg.svdvals(weight.flatten(1))[0]), rel=1e-12, abs=0)
    # What it is not: the norm of the convolution.
    assert reshaped.value < norm(conv(weight))
    published = PublishedGrid(points=20, steps=2)(conv(weight))
    blocks = torch.fft.fft2(weight, s=(20, 20)).permute(2, 3, 0, 1)
    schatten = (torch.linalg.svdvals(blocks) ** 8).sum(-1).max() ** (1 / 8)
    assert published.kind is Kind.ESTIMATE
    assert published.lower is None
    # Transform, two squarings of 4 x 3 blocks and roots on one side, singular values on the other: some 1e-15 each.
    assert published.value == pytest.approx(float(schatten) * (1 - 8 / 20) ** (-1 / 8), rel=1e-12, abs=0)


def test_grids_too_coarse_are_refused() -> None:
    op = conv(kernel(2, 2, 5, 5), 9)
    with pytest.raises(ArgumentError, match="points >= 8"):
        LipGrid(7)(op)
    with pytest.raises(ArgumentError, match=r"LipGrid\.points"):
        LipGrid(0)
    with pytest.raises(ArgumentError, match="more than 16 points"):
        PublishedGrid(points=16, steps=2)(op)
