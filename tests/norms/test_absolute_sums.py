"""Sums of absolute values against dense decompositions, with large numbers, small ones and gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lipkit._runtime import time_limit
from lipkit.bound import Kind
from lipkit.errors import NonFiniteError, OutOfTimeError
from lipkit.linops import Dense, LinearOperator, Reshape, materialize, of
from lipkit.norms import SVD, AbsoluteSums, Auto, InTime, Lanczos, Mixed


def spectral(op: LinearOperator) -> float:
    return float(torch.linalg.matrix_norm(materialize(op.to(torch.float64)), ord=2))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32), st.sampled_from([1e-200, 1e-3, 1.0, 1e200]))
def test_never_below_the_norm_and_equal_to_the_closed_form(rows: int, cols: int, seed: int, scale: float):
    matrix = torch.randn(rows, cols, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale
    bare, shaped = Dense(matrix), Dense(matrix) @ Reshape((1, cols), (cols,))
    for op in (bare, shaped):
        found = AbsoluteSums()(op)
        assert found.kind is Kind.UPPER
        # A decomposition in float64 is right to a few roundings.
        assert float(found.log_value.exp()) >= spectral(op) * (1 - 1e-13)
        # Both are the same formula with other slacks for rounding.
        assert float(found.log_value) == pytest.approx(float(Mixed(2.0, 2.0)(op).log_value), abs=1e-11)


def test_single_precision_is_summed_in_double():
    # In single precision the sum of 2^25 ones and a half would stay 2^24; here it is exact.
    row = torch.ones(1, 2**13)
    row[0, 0] = 2.0**25
    row[0, 1] = 0.5
    assert float(AbsoluteSums()(Dense(row)).value) ** 2 >= (2.0**25 + 2**13 - 1.5) * 2.0**25


def test_products_are_bounded_by_products_of_parts():
    torch.manual_seed(0)
    first, second = (Dense(torch.randn(5, 5, dtype=torch.float64)) for _ in range(2))
    both = second @ first
    found = float(AbsoluteSums()(both).value)
    assert spectral(both) <= float(Mixed(2.0, 2.0)(both).value) <= found * (1 + 1e-12)


def test_complex_matrices_keep_their_imaginary_part():
    matrix = torch.tensor([[1j, 0.0], [0.0, 2j]], dtype=torch.complex128)
    assert float(AbsoluteSums()(Dense(matrix)).value) >= 2.0


def test_the_gradient_is_that_of_the_two_largest_sums():
    matrix = torch.tensor([[1.0, -2.0], [3.0, -4.0]], dtype=torch.float64, requires_grad=True)
    AbsoluteSums()(Dense(matrix)).value.backward()
    assert matrix.grad is not None
    # (7 * 6)^(1/2): the second row and the second column.
    row, column = 0.5 * (6 / 7) ** 0.5, 0.5 * (7 / 6) ** 0.5
    expected = torch.tensor([[0.0, -column], [row, -row - column]], dtype=torch.float64)
    torch.testing.assert_close(matrix.grad, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float):
    matrix = torch.ones(3, 3)
    matrix[1, 1] = value
    with pytest.raises(NonFiniteError, match="repair the weights"):
        AbsoluteSums()(Dense(matrix))


def test_in_time_is_the_norm_inside_with_time_and_sums_without():
    op = of(nn.Conv2d(2, 4, 3, padding=1).double().requires_grad_(False), (2, 6, 6))
    assert float(InTime(SVD())(op).value) == float(SVD()(op).value)
    with time_limit(-1):
        assert float(InTime(SVD()).many([op])[0].value) == float(AbsoluteSums()(op).value)
        with pytest.raises(OutOfTimeError):
            SVD()(op)


def test_a_hasty_choice_for_a_large_matrix_is_products_with_vectors():
    large = Dense(torch.randn(600, 600))
    assert isinstance(Auto(rtol=0.25).select(large).method, Lanczos)
    assert not isinstance(Auto(rtol=0.01).select(large).method, Lanczos)
    assert not isinstance(Auto(rtol=0.25, failure=0).select(large).method, Lanczos)
    found = Auto(rtol=0.25)(large)
    assert spectral(large) <= float(found.value) <= 1.25 * spectral(large)
