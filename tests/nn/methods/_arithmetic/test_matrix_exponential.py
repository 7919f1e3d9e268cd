"""The matrix exponential against scipy's, alone and in batches, with its derivatives."""

import math

import pytest
import scipy.linalg
import torch
from torch import Tensor

from lipkit import nn as lnn
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.matrix_exponential import matrix_exponential
from support.orthonormal import residual

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
# From 0.085 to 1.09 in float32 and from 0.05 to 0.47 in float64 torch.matrix_exp takes its polynomial of degree 8.
SIZES = [0.0, 1e-6, 0.03, 0.3, 0.57, 1.0, 5.0, 5.4, 11.0, 100.0]


def exponential(matrix: Tensor) -> Tensor:
    norm = torch.linalg.matrix_norm(matrix.detach(), keepdim=True)
    return matrix_exponential(matrix, norm, float(norm.amax()))


def by_scipy(matrix: Tensor) -> Tensor:
    wide = matrix.to(torch.promote_types(matrix.dtype, torch.float64))
    return torch.from_numpy(scipy.linalg.expm(wide.numpy()))


def skew_of_size(size: float, dtype: torch.dtype, *batch: int) -> Tensor:
    skew = torch.randn(*batch, 6, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))
    skew = skew - skew.mH
    return size * skew / torch.linalg.matrix_norm(skew, 2, keepdim=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_skew_matrices(size: float, dtype: torch.dtype) -> None:
    skew = skew_of_size(size, dtype, 3)
    eps = torch.finfo(dtype).eps
    for one, of in zip(exponential(skew), skew, strict=True):
        # The exponential changes by as much as its argument, whose digits are relative to its size.
        assert float((one - by_scipy(of)).norm()) < (20 + 10 * size) * eps
        # Errors double with every squaring.
        assert residual(one) < (20 + 10 * size) * eps


@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
def test_other_matrices(size: float) -> None:
    matrix = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = size * matrix / torch.linalg.matrix_norm(matrix, 2, keepdim=True)
    # exp of the norm is the size of the terms that may cancel.
    torch.testing.assert_close(exponential(matrix), by_scipy(matrix), rtol=0, atol=1e-15 * 40 * math.exp(size))


def test_sizes_in_one_batch_do_not_share_their_squarings() -> None:
    skew = torch.cat([skew_of_size(size, torch.float32, 1) for size in (1e-3, 1.0, 300.0)])
    # The first are as sharp beside a large one as alone.
    assert float((exponential(skew)[0] - by_scipy(skew[0])).norm()) < 1e-6
    torch.testing.assert_close(exponential(skew)[1], exponential(skew[1:2])[0], rtol=0, atol=0)


@pytest.mark.parametrize("size", [0.5, 20.0])
def test_derivatives(size: float) -> None:
    skew = skew_of_size(size, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(exponential, skew)
    assert torch.autograd.gradgradcheck(exponential, skew)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_weight_is_the_exponential_alone_and_in_a_batch(size: float, dtype: torch.dtype) -> None:
    """torch.matrix_exp is wrong for single matrices only, so a layer alone differed from one among others."""
    skew = skew_of_size(size, dtype, 2)
    method = lnn.Exponential()
    alone = method(skew[:1] / 2, Geometry(1, 6, 6))
    both = method(skew / 2, Geometry(2, 6, 6))
    # In float64 the weight is smaller by 2e-12, the room that is left for rounding; torch was off by 2.5e-10.
    tolerance = {torch.float32: (40 + 10 * size) * 2.0**-23, torch.float64: 1e-11}[dtype]
    # The norms are within what the method leaves as they are, 2 pi 6^(1/2) = 15.4 in Frobenius norm.
    if size < 15.4 / 6**0.5:
        assert float((alone[0] - by_scipy(skew[0])).norm()) < tolerance
    torch.testing.assert_close(alone[0], both[0], rtol=0, atol=tolerance)
