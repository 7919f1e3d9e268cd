"""Scalings, permutations and copies: norms known in closed form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Kind
from lipkit.errors import UnsupportedError
from lipkit.linops import (
    BatchNorm,
    Dense,
    Diagonal,
    Index,
    LinearOperator,
    Padding,
    Permute,
    Reshape,
    flip,
    pad,
    select,
)
from lipkit.norms import SVD, Monomial
from support.operators.geometries import KINDS


@settings(max_examples=60)
@given(st.one_of(*(KINDS[kind] for kind in (BatchNorm, Diagonal, Index, Permute, Reshape))))
def test_agrees_with_the_proven_svd(op: LinearOperator) -> None:
    found, dense = Monomial()(op), SVD()(op)
    assert found.kind is Kind.EXACT
    assert dense.lower is not None
    assert dense.lower.value <= found.value
    # Both are exact up to their slack; a full decomposition of 64 unknowns has the larger one.
    # A dense decomposition with its slack on the other side: below 1e-11 of the largest entry.
    assert found.value == pytest.approx(float(dense.value), rel=1e-11, abs=1e-14)


@pytest.mark.parametrize(
    ("op", "norm"),
    [
        (Diagonal(torch.tensor([1.0, -3.0, 2.0]), (3,)), 3.0),
        (Diagonal(torch.tensor([3 + 4j, 1.0]), (2,)), 5.0),
        (Permute((2, 3), (1, 0)), 1.0),
        (Reshape((2, 3), (6,)), 1.0),
        (flip((4,), (0,)), 1.0),
        (select((5,), (slice(1, None, 2),)), 1.0),
        (pad((3,), ((2, 0),), Padding.REPLICATE), math.sqrt(3)),
        (pad((3,), ((2, 2),), Padding.ZEROS), 1.0),
        (pad((2, 2), ((1, 1), (1, 1)), Padding.REPLICATE), 2.0),
        (Index(torch.tensor([0, 0, -1, 1, 0, 0]), (3,)), 2.0),
        (Index(torch.tensor([-1, -1]), (3,)), 0.0),
        (BatchNorm(torch.tensor([2.0, -6.0]).double(), torch.tensor([4.0, 9.0]).double(), 0.0, (2, 3)), 2.0),
        (BatchNorm(None, torch.tensor([0.25, 4.0]).double(), 0.0, (2,)), 2.0),
    ],
    ids=str,
)
def test_closed_forms(op: LinearOperator, norm: float) -> None:
    value = Monomial()(op).value
    # A few roundings, upwards.
    # One logarithm, one exponential and a rounding up: a few dozen units of 1e-16.
    assert norm <= value <= norm * (1 + 1e-14)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e308])
def test_squares_neither_overflow_nor_underflow(scale: float) -> None:
    op = Diagonal(torch.tensor([0.5, -1.0], dtype=torch.float64) * scale, (2,))
    # The logarithm of 1e308 is rounded at 1e-13.
    assert float(Monomial()(op).log_value) == pytest.approx(math.log(scale), abs=1e-12)


def test_gradient_is_the_sign_at_the_largest_entry() -> None:
    scale = torch.tensor([1.0, -3.0, 2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Monomial()(Diagonal(scale, (3,))).value, scale)
    # The value is moved up by a few roundings, and its derivative with it.
    # Through a logarithm and back: a few units of 1e-16.
    torch.testing.assert_close(gradient, torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64), rtol=0, atol=1e-14)
    weight, variance = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in ([2.0, 5.0], [1.0, 2.0]))
    assert torch.autograd.gradcheck(lambda w, v: Monomial()(BatchNorm(w, v, 1e-3, (2, 2))).value, (weight, variance))


def test_others_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="at most one entry in each row or in each column"):
        Monomial()(Dense(torch.eye(2)))
