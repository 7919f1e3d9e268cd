"""D >= |A| for every operator, equal where nothing can cancel; and the lengths of rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.errors import ArgumentError
from lipkit.linops import Dense, LinearFunction, LinearOperator, StatedRounding, depth, materialize, sweep
from lipkit.linops.queries.absolute import dominating
from lipkit.linops.queries.row_norms import row_norms
from lipkit.rounding.float64 import vector_norms
from support.operators.geometries import operators


@settings(max_examples=40)
@given(operators(), st.sampled_from([0, 2**22]))
def test_never_below_the_absolute_value(op: LinearOperator, written_out: int):
    matrix = materialize(op.to(torch.float64))
    found = materialize(dominating(op.to(torch.float64), written_out))
    # Both are sums of products; what cancels in the matrix is of the size of the sum without signs, which is `found`.
    slack = 1e-13 * (1 + found.abs())
    assert bool((found >= matrix.abs() - slack).all())
    if written_out:
        torch.testing.assert_close(found, matrix.abs(), atol=1e-12, rtol=1e-9)


@settings(max_examples=25)
@given(operators(), st.sampled_from([1.0, 1.5, 2.0, 5.0, math.inf]))
def test_row_norms_are_those_of_the_matrix(op: LinearOperator, q: float):
    truth = torch.linalg.vector_norm(materialize(op.to(torch.float64)), ord=q, dim=1)
    found = row_norms(op, q).flatten()
    # What rounding leaves of a cancelled entry is relative to its terms.
    assert bool((found >= truth * (1 - 1e-13) - 1e-13).all())
    torch.testing.assert_close(found, truth, atol=1e-10, rtol=1e-9)


def test_rounding_errors_are_within_what_the_parts_allow():
    # A product that cancels: float32 weights evaluated in float32 against float64, with the unit roundoff of float32.
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(30, 30, generator=generator) for _ in range(2))
    op = Dense(a) @ Dense(b)
    x = torch.randn(30, generator=generator)
    error = (op.apply(x).double() - op.to(torch.float64).apply(x.double())).abs()
    bound = depth(op) * 2.0**-24 / (1 - depth(op) * 2.0**-24) * dominating(op.to(torch.float64)).apply(x.abs().double())
    assert bool((error <= bound).all())
    assert float((error / bound).max()) > 1e-3  # not a vacuous bound


def test_graphs_and_statements_are_covered():
    a, b = Dense(torch.tensor([[1.0, -2.0]]).double().mT), Dense(torch.tensor([[3.0, 4.0]]).double())
    graph = sweep([(1, 0, a), (2, 1, b), (2, 0, Dense(torch.tensor([[-1.0]]).double()))], 0, 2)
    assert graph is not None
    stated = StatedRounding(graph, 5, 1.0)
    for op in (graph, stated):
        assert float(materialize(op)) == 3 - 8 - 1
        assert float(materialize(dominating(op))) == 3 + 8 + 1
        assert float(materialize(dominating(op, 100))) == 6


def test_a_callable_is_formed_row_by_row():
    op = LinearFunction(lambda x: x.flip(-1) - 2 * x, (3,), (3,))
    found = dominating(op)
    expected = torch.tensor([[2.0, 0, 1], [0, 1, 0], [1, 0, 2]], dtype=torch.float64)
    torch.testing.assert_close(materialize(found), expected)
    x = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(found.adjoint(x), x @ expected)


def test_vector_norms_survive_extreme_numbers():
    rows = torch.tensor([[3e-200, 4e-200], [3e200, 4e200], [0.0, 0.0]], dtype=torch.float64)
    # An upper bound by a few units in the last place; zero is exact.
    torch.testing.assert_close(vector_norms(rows, 2.0), torch.tensor([5e-200, 5e200, 0.0], dtype=torch.float64))
    assert bool((vector_norms(rows, 300.0) >= rows.amax(1)).all())
    with pytest.raises(ArgumentError, match="exponent"):
        row_norms(Dense(rows), 0.5)
