"""The symbol on the torus: the dense norm under circular padding, a bound that no other torus beats under any other."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from lipkit.bound import Kind
from lipkit.linops import Conv, LinearOperator, Padding, materialize, symbol
from lipkit.norms import SVD, Cholesky, Circulant, Frobenius, Gram
from support.operators.conv_geometries import conv_operators, conv_transpose_operators

# LAPACK's largest singular value of the small matrices here: a modest multiple of their size in roundings.
DENSE = 150 * 2.0**-53
# The proof of the singular values of a block rounds outward: products over its columns, the defect of the vectors from
# orthonormality and the sums behind every entry, for blocks of up to 4 x 48. Over 100 kernels it was 744 roundings.
PROOF = 1024 * 2.0**-53


def norm(op: LinearOperator) -> float:
    return float(torch.linalg.svdvals(materialize(op)).max())


def kernel(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def conv(weight: Tensor, n: int, mode: Padding = Padding.CIRCULAR, stride: int = 1) -> Conv:
    side = (weight.shape[-1] - 1) // 2
    return Conv(weight, (n, n), (stride, stride), ((side, side),) * 2, (1, 1), 1, mode)


def test_circular_geometries_equal_the_dense_matrix() -> None:
    exact, bounded = 0, 0

    @settings(max_examples=120)
    @given(conv_operators(modes=(Padding.CIRCULAR,)))
    def check(op: Conv) -> None:
        nonlocal exact, bounded
        bound, truth = Circulant()(op), norm(op)
        # Blocks of up to 60 columns: n^2 2^-53 a few times over; a kernel that folds onto itself may cancel.
        slack = 1e-11 * truth + 1e-13 * float(op.weight.abs().sum())
        assert truth * (1 - 150 * 2.0**-53) <= bound.value
        if symbol(op).exact:
            exact += 1
            assert bound.kind is Kind.EXACT
            assert bound.value <= truth + slack
            assert bound.lower is not None
            assert truth - slack <= bound.lower.value <= truth * (1 + 150 * 2.0**-53)
        else:
            bounded += 1
            assert bound.kind is Kind.UPPER
            assert bound.lower is None

    check()
    assert exact >= 25
    assert bounded >= 10


@settings(max_examples=60)
@given(conv_operators(modes=(Padding.ZEROS,)))
def test_zero_padding_is_a_corner_of_the_torus(op: Conv) -> None:
    bound, found = Circulant()(op), symbol(op)
    # A grid so fine that a polynomial of these few taps cannot rise between its points by more than 2 percent.
    grid = {1: (64,), 2: (24, 24), 3: (12, 12, 12)}[len(op.spatial)]
    blocks = found.at(found.frequencies(grid), grid)
    highest = {1: 1.03, 2: 1.08, 3: 1.25}[len(op.spatial)] * torch.linalg.svdvals(blocks).max()
    assert norm(op) * (1 - 150 * 2.0**-53) <= bound.value <= highest * (1 + 1e-9)


@settings(max_examples=40)
@given(conv_transpose_operators())
def test_transposed_convolutions_are_bounded(op: LinearOperator) -> None:
    assert Circulant()(op).value >= norm(op) * (1 - 150 * 2.0**-53)


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_against_the_fourier_transform_of_the_kernel(n: int) -> None:
    weight = kernel(4, 3, 3, 3)
    blocks = torch.fft.fft2(weight, s=(n, n)).permute(2, 3, 0, 1)
    # The transform of torch is accurate to a few roundings.
    truth = float(torch.linalg.svdvals(blocks).max())
    assert Circulant()(conv(weight, n)).value == pytest.approx(truth, rel=PROOF + DENSE, abs=0)


def test_a_kernel_longer_than_the_image_folds() -> None:
    weight = kernel(2, 2, 3, 5)
    op = Conv(weight, (2, 4), (1, 1), ((1, 1), (2, 2)), (1, 1), 1, Padding.CIRCULAR)
    folded = torch.zeros(2, 2, 2, 4, dtype=torch.float64)
    for a in range(3):
        for b in range(5):
            folded[:, :, a % 2, b % 4] += weight[:, :, a, b]
    truth = torch.linalg.svdvals(torch.fft.fft2(folded).permute(2, 3, 0, 1)).max()
    # Folding adds at most four taps, one more rounding each; nothing cancels in this kernel.
    assert Circulant()(op).value == pytest.approx(float(truth), rel=PROOF + DENSE, abs=0)
    assert norm(op) == pytest.approx(float(truth), rel=2 * DENSE, abs=0)


@pytest.mark.parametrize("stride", [2, 4])
def test_a_stride_is_more_columns(stride: int) -> None:
    """Polyphase: a convolution of stride s is one of stride 1 on s^2 times the channels of an image s times smaller."""
    weight, n = kernel(4, 3, 3, 3, seed=1), 8
    taps = -(-3 // stride)
    phases = torch.zeros(4, 3 * stride**2, taps, taps, dtype=torch.float64)
    for a in range(3):
        for b in range(3):
            columns = torch.arange(3) * stride**2 + (a % stride) * stride + b % stride
            phases[:, columns, a // stride, b // stride] = weight[:, :, a, b]
    truth = torch.linalg.svdvals(torch.fft.fft2(phases, s=(n // stride,) * 2).permute(2, 3, 0, 1)).max()
    op = conv(weight, n, stride=stride)
    # Two factorisations of the same singular values, by other matrices; and the proof of one of them.
    assert norm(op) == pytest.approx(float(truth), rel=2 * DENSE, abs=0)
    assert Circulant()(op).value == pytest.approx(float(truth), rel=PROOF + DENSE, abs=0)
    # Taking every s-th output is 1-Lipschitz.
    assert truth <= Circulant()(conv(weight, n)).value


@pytest.mark.parametrize("inner", [SVD(), Gram(12), Cholesky(), Frobenius()], ids=str)
def test_any_inner_method(inner: SVD | Gram | Cholesky | Frobenius) -> None:
    op = conv(kernel(3, 3, 3, 3), 5)
    bound = Circulant(inner)(op)
    assert bound.kind is inner.kind
    assert bound.value >= norm(op) * (1 - 75 * 2.0**-53)
    if not isinstance(inner, Frobenius):
        # 3^(2^-13) - 1 of Gram for three equal values is the largest excess.
        assert bound.value <= norm(op) * (1 + 2e-4)


def test_groups_are_blocks_and_the_gradient_goes_through_the_largest() -> None:
    weight = kernel(4, 2, 3, 3)
    weight[:2] *= 0.1
    weight.requires_grad_()
    op = Conv(weight, (4, 4), (1, 1), ((1, 1), (1, 1)), (1, 1), 2, Padding.CIRCULAR)
    alone = Conv(weight.detach()[2:], (4, 4), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, Padding.CIRCULAR)
    bound = Circulant()(op)
    # The other group is ten times smaller, so the norm is that of the second one alone.
    assert bound.value.item() == pytest.approx(norm(alone), rel=PROOF + DENSE, abs=0)
    (gradient,) = torch.autograd.grad(bound.value, weight)
    assert bool((gradient[:2] == 0).all())
    # A norm is homogeneous of degree one: <gradient, weight> = value. A sum of 36 products, and a gradient whose two
    # singular vectors are those of the value, so that their error enters twice, in second order.
    assert (gradient * weight).sum().item() == pytest.approx(bound.value.item(), rel=64 * 2.0**-53, abs=0)
