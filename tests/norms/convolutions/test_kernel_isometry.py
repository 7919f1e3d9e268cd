"""Orthogonal convolutions, built from projections, against the dense SVD at several sizes and paddings."""

import pytest
import torch
from torch import Tensor

from lipkit.linops import Conv, Padding, materialize
from lipkit.norms import KernelIsometry, SmallGrid


def orthogonal(n: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q


def projection(n: int, generator: torch.Generator) -> Tensor:
    half = orthogonal(n, generator)[:, : n // 2]
    return half @ half.mT


def joined(a: Tensor, b: Tensor) -> Tensor:
    """The kernel of two convolutions after each other, (out, in, height, width) each."""
    found = torch.zeros(a.shape[0], b.shape[1], a.shape[2] + b.shape[2] - 1, a.shape[3] + b.shape[3] - 1).double()
    for i in range(a.shape[2]):
        for j in range(a.shape[3]):
            here = found[:, :, i : i + b.shape[2], j : j + b.shape[3]]
            here += torch.einsum("om,mihw->oihw", a[:, :, i, j], b)
    return found


def orthogonal_kernel(channels: int, size: int, seed: int = 0) -> Tensor:
    """H (P_1, I - P_1) (Q_1, I - Q_1) ...: each pair splits the channels and shifts one half, in either direction."""
    generator = torch.Generator().manual_seed(seed)
    identity = torch.eye(channels, dtype=torch.float64)
    kernel = orthogonal(channels, generator)[:, :, None, None]
    for _ in range(size - 1):
        for axis in (2, 3):
            p = projection(channels, generator)
            kernel = joined(kernel, torch.stack([p, identity - p], -1).unsqueeze(axis))
    return kernel


def conv(kernel: Tensor, n: int, mode: Padding, padding: int) -> Conv:
    return Conv(kernel, (n, n), (1, 1), ((padding, padding),) * 2, (1, 1), 1, mode)


def norm(op: Conv) -> float:
    return float(torch.linalg.svdvals(materialize(op.to(torch.float64)))[0])


@pytest.mark.parametrize(("mode", "padding"), [(Padding.ZEROS, 0), (Padding.ZEROS, 1), (Padding.CIRCULAR, 1)])
@pytest.mark.parametrize("n", [3, 4, 6])
def test_an_orthogonal_kernel_is_proven_sharp(n: int, mode: Padding, padding: int) -> None:
    kernel = orthogonal_kernel(4, 3)
    assert kernel.shape == (4, 4, 3, 3)
    op = conv(kernel, n, mode, padding)
    bound = KernelIsometry()(op).value
    if mode is Padding.CIRCULAR:
        # On a circle the convolution is an isometry.
        assert norm(op) == pytest.approx(1, abs=1e-13)
    # 36 products of numbers below 1 in each of 100 entries of the filter Gram, all counted at worst.
    assert norm(op) * (1 - 1e-14) <= bound <= 1 + 1e-11


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_cast_to_float32_costs_what_it_costs(size: int) -> None:
    kernel = orthogonal_kernel(8, size).to(torch.float32)
    # An even kernel is padded on one side, so that each output is written once.
    op = Conv(kernel, (6, 6), (1, 1), (((size - 1) // 2, size // 2),) * 2, (1, 1), 1, Padding.CIRCULAR)
    bound = float(KernelIsometry()(op).value)
    assert norm(op) <= bound
    # Rounding errors of 2^-24 in 64 size^2 entries, summed without regard to sign over (2 size - 1)^2 taps.
    assert bound - 1 <= {2: 2e-6, 3: 6e-6, 5: 4e-5}[size]
    # A grid cannot see that the polynomial is flat between its points.
    assert float(SmallGrid()(op).value) - 1 > 20 * (bound - 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("mode", "padding"), [(Padding.ZEROS, 1), (Padding.CIRCULAR, 1)])
def test_casts_to_half_precision_stay_sound(dtype: torch.dtype, mode: Padding, padding: int) -> None:
    op = conv(orthogonal_kernel(6, 3, seed=2).to(dtype), 5, mode, padding)
    assert norm(op) <= KernelIsometry()(op).value <= 1 + (0.2 if dtype is torch.bfloat16 else 0.02)


def test_multiples_rows_and_strides() -> None:
    kernel = orthogonal_kernel(6, 3, seed=1)
    for some in (kernel[:4], 3e20 * kernel[:4], 1e-20 * kernel[:, :]):
        op = conv(some, 5, Padding.CIRCULAR, 1)
        # Fewer rows of an isometry's adjoint: still orthonormal. Tolerance as above.
        assert KernelIsometry()(op).value == pytest.approx(norm(op), rel=1e-10)
    # Torch's padding k // 2 of an even kernel copies a row and a column: twice the norm, and the bound says so.
    doubled = conv(orthogonal_kernel(4, 2), 6, Padding.CIRCULAR, 1)
    assert KernelIsometry()(doubled).value == pytest.approx(2, abs=1e-9)
    assert norm(doubled) <= 2 * (1 + 1e-13)
    strided = Conv(kernel, (6, 6), (2, 2), ((1, 1), (1, 1)), (1, 1), 1, Padding.CIRCULAR)
    # Columns by phase lose the structure: still a bound, up to the Wiener norm.
    assert norm(strided) <= KernelIsometry()(strided).value <= 6


def test_gradient_against_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.complex128):
        kernel = torch.randn(2, 3, 2, 3, dtype=dtype, generator=generator).requires_grad_()
        assert torch.autograd.gradcheck(lambda k: KernelIsometry()(conv(k, 4, Padding.ZEROS, 1)).value, (kernel,))
