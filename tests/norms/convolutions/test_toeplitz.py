"""Gram iteration on kernels: the worked example, its limit, and bounds at every stride and padding."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Conv, LinearOperator, Padding, materialize
from lipkit.norms import Toeplitz
from support.operators.conv_geometries import conv_operators, conv_transpose_operators

EXAMPLE = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 3, 3, 3)))


def conv(weight: Tensor, n: int, mode: Padding = Padding.ZEROS) -> Conv:
    return Conv(weight, (n, n), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, mode)


def norm(op: LinearOperator) -> float:
    return float(torch.linalg.svdvals(materialize(op)).max())


def supremum(weight: Tensor) -> float:
    return float(torch.linalg.svdvals(torch.fft.fft2(weight, s=(240, 240)).permute(2, 3, 0, 1)).max())


def test_the_worked_example() -> None:
    op = conv(EXAMPLE, 8)
    # All published to four digits.
    # Expected values are printed with three or two decimals.
    assert norm(op) == pytest.approx(8.992, abs=5e-4)
    assert supremum(EXAMPLE) == pytest.approx(9.370, abs=5e-4)
    for steps, expected in ((1, 13.38), (2, 10.91), (3, 9.914)):
        assert float(Toeplitz(steps)(op).value) == pytest.approx(expected, abs=5e-3)
    # On a circle only the row sums apply; under zero padding the Frobenius form is better by then.
    assert float(Toeplitz(4)(conv(EXAMPLE, 8, Padding.CIRCULAR)).value) == pytest.approx(9.559, abs=5e-4)
    assert norm(op) <= float(Toeplitz(4)(op).value) <= 9.559


def test_the_limit_is_the_supremum_and_the_error_halves() -> None:
    op = conv(EXAMPLE, 50, Padding.CIRCULAR)
    excess = [float(Toeplitz(steps)(op).value) / supremum(EXAMPLE) - 1 for steps in (3, 4, 5)]
    for before, after in itertools.pairwise(excess):
        # O(2^-steps): a row sum of the last kernel beside its supremum, to the power 2^-steps.
        assert 0.3 <= after / before <= 0.55


@settings(max_examples=60)
@given(st.one_of(conv_operators(), conv_transpose_operators()), st.integers(1, 3))
def test_bounds_every_geometry(op: LinearOperator, steps: int) -> None:
    assert Toeplitz(steps)(op).value >= norm(op) * (1 - 150 * 2.0**-53)


@settings(max_examples=40)
@given(conv_operators(torch.complex128), st.integers(1, 3))
def test_bounds_complex_kernels(op: Conv, steps: int) -> None:
    """The filter Gram needs the conjugate: without it these come out at half the norm."""
    assert Toeplitz(steps)(op).value >= norm(op) * (1 - 150 * 2.0**-53)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_few_output_positions_help(n: int) -> None:
    for seed in range(5):
        weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for some in (weight, weight.transpose(0, 1)):
            op = conv(some, n)
            # The norm on the left is a decomposition, off by some 1e-15 itself.
            assert norm(op) * (1 - 1e-14) <= Toeplitz(3)(op).value
            # On one position the operator is the middle of the kernel; without the second form it would be 3 times it.
            # Equal in exact arithmetic at worst; both are sums of some hundred products.
            assert Toeplitz(3)(op).value <= Toeplitz(3)(conv(some, n, Padding.CIRCULAR)).value * (1 + 1e-13)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_any_scale(scale: float) -> None:
    op, scaled = conv(EXAMPLE, 8), conv(EXAMPLE * scale, 8)
    shifted = float(Toeplitz()(scaled).log_value) - float(np.log(scale))
    # A logarithm of 460 is rounded at 1e-13.
    assert shifted == pytest.approx(float(Toeplitz()(op).log_value), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradient_against_differences(dtype: torch.dtype) -> None:
    weight = torch.randn(2, 3, 2, 2, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: Toeplitz(2)(conv(k, 4)).value, (weight,))


def test_a_dead_group_has_gradient_zero() -> None:
    weight = torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight[:2] = 0
    weight.requires_grad_()
    bound = Toeplitz()(Conv(weight, (6,), (1,), ((1, 1),), (1,), 2))
    (gradient,) = torch.autograd.grad(bound.value, weight)
    assert bool((gradient[:2] == 0).all())
    assert bool(torch.isfinite(gradient).all())


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match=r"Toeplitz\.steps"):
        Toeplitz(0)
