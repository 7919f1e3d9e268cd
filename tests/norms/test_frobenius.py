"""The Frobenius norm: its closed form, where it is sharp, and its gradient."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from lipkit.bound import Kind
from lipkit.linops import Dense, LinearOperator, frobenius, materialize
from lipkit.norms import Frobenius
from support.operators.geometries import operators


@settings(max_examples=60)
@given(operators())
def test_the_root_of_the_sum_of_squares(op: LinearOperator) -> None:
    bound = Frobenius()(op)
    truth = float(frobenius(op))
    sigma = float(torch.linalg.svdvals(materialize(op)).max())
    assert bound.kind is Kind.UPPER
    # The closed form and the matrix sum up to 22500 squares in different orders: 1e-12, with what cancels in the parts.
    assert bound.value == pytest.approx(truth, rel=1e-11, abs=1e-11)
    assert sigma * (1 - 150 * 2.0**-53) <= bound.value <= sigma * 150**0.5 + 1e-10


def test_sharp_for_rank_one_only() -> None:
    bound = Frobenius()(Dense(torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 12.0]))))
    assert bound.lower is not None
    # Compared as rational numbers: nothing is forgiven from below.
    assert Fraction(bound.lower.value.item()) <= 65 <= Fraction(bound.value.item())
    # Both sides are rounded outward by the slack of four squares and a root, about a hundred roundings each.
    assert bound.value / bound.lower.value - 1 <= 256 * 2.0**-53
    # The slack of 81 squares and a root, which are 122 roundings; the sum and the root themselves are exact.
    assert Frobenius()(Dense(torch.eye(9))).value == pytest.approx(3, rel=128 * 2.0**-53, abs=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradient_against_differences_and_closed_form(dtype: torch.dtype) -> None:
    matrix = torch.randn(4, 3, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def norm(w: Tensor) -> Tensor:
        return Frobenius()(Dense(w)).value

    (found,) = torch.autograd.grad(norm(matrix), matrix)
    expected = matrix.detach() / torch.linalg.vector_norm(matrix.detach())
    # The slack of twelve squares.
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    assert torch.autograd.gradcheck(norm, (matrix,))
    assert torch.autograd.gradgradcheck(norm, (matrix,))
