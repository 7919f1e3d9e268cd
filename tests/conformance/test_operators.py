"""One suite for every linear operator: what `LinearOperator` promises, against its dense matrix."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit import linops
from lipkit.linops import (
    LinearOperator,
    absolute,
    column_sums,
    depth,
    frobenius,
    magnitude,
    materialize,
    one_entry_per_row,
    row_sums,
    signature,
    stack,
    support,
)
from lipkit.linops.queries.support import propagate
from support.operators.geometries import KINDS, complex_operators, operators, tensors

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def same(found: Tensor, expected: Tensor) -> None:
    # Sums of at most 150 products of normal numbers, through at most three operators: 1e-13 relative to the largest
    # entry at worst. 1e-11 leaves room and is far below any wrong index.
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert (found - expected).abs().max() <= 1e-11 * (1 + expected.abs().max())


def vector(data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    return data.draw(tensors(shape, dtype))


def matrix_of(op: LinearOperator) -> Tensor:
    """The matrix by its definition: the images of the unit vectors are its columns."""
    units = torch.eye(op.in_size, dtype=op.dtype).reshape(op.in_size, *op.in_shape)
    return op.apply(units).reshape(op.in_size, op.out_size).mT


def test_every_operator_class_is_in_the_suite() -> None:
    classes = {v for v in vars(linops).values() if inspect.isclass(v) and issubclass(v, LinearOperator)}
    # StatedRounding is a remark about one set of tensors, so it does not survive the changes of weights made here.
    assert classes - {LinearOperator, linops.StatedRounding} == set(KINDS)


@every_kind
def test_linear_with_hermitian_adjoint_and_batches(kind: type[LinearOperator]) -> None:
    drawn: set[type[LinearOperator]] = set()

    @settings(max_examples=40)
    @given(KINDS[kind], st.data())
    def check(op: LinearOperator, data: st.DataObject) -> None:
        drawn.add(type(op))
        matrix = matrix_of(op)
        same(materialize(op), matrix)
        x, y = vector(data, (2, 3, *op.in_shape)), vector(data, (2, 3, *op.out_shape))
        same(op.apply(x).flatten(2), x.flatten(2) @ matrix.mT)
        same(op.adjoint(y).flatten(2), y.flatten(2) @ matrix)
        same(op.apply(x[0, 0]), op.apply(x)[0, 0])
        same(op.T.apply(y), op.adjoint(y))
        same(op.T.T.apply(x), op.apply(x))
        assert op.apply(x[:0]).shape == (0, 3, *op.out_shape)
        assert op.adjoint(y[:0]).shape == (0, 3, *op.in_shape)

    check()
    assert drawn == {kind}


@settings(max_examples=150)
@given(complex_operators(), st.data())
def test_complex_adjoint_is_hermitian(op: LinearOperator, data: st.DataObject) -> None:
    assert op.dtype == torch.complex128
    matrix = matrix_of(op)
    same(materialize(op), matrix)
    y = vector(data, (2, *op.out_shape), torch.complex128)
    same(op.adjoint(y).flatten(1), y.flatten(1) @ matrix.conj())
    same(frobenius(op), torch.linalg.vector_norm(matrix))
    same(materialize(absolute(op)), matrix.abs())
    assert op.to(torch.float32).dtype == torch.complex64


@every_kind
@settings(max_examples=12)
@given(data=st.data())
def test_moves_keep_the_function(kind: type[LinearOperator], data: st.DataObject) -> None:
    op = data.draw(KINDS[kind])
    x = vector(data, (2, *op.in_shape))
    same(op.to(torch.float64).apply(x), op.apply(x))
    again = op.with_tensors(op.tensors())
    assert all(a is b for a, b in zip(again.tensors(), op.tensors(), strict=True))
    same(again.apply(x), op.apply(x))
    narrow = op.to(torch.float32)
    assert all(t.dtype in {torch.float32, torch.int64} for t in narrow.tensors())
    for found, wide in (
        (narrow.apply(x.float()), op.apply(x)),
        (narrow.adjoint(wide_ones(op)), op.adjoint(wide_ones(op).double())),
    ):
        assert found.dtype == torch.float32
        # Single precision rounding of sums of 150 terms, as above: 150 * 2^-24 = 1e-5.
        assert (found - wide).abs().max() <= 1e-4 * (1 + wide.abs().max())


def wide_ones(op: LinearOperator) -> Tensor:
    return torch.ones(1, *op.out_shape)


@every_kind
@settings(max_examples=12)
@given(data=st.data())
def test_gradients_reach_every_tensor(kind: type[LinearOperator], data: st.DataObject) -> None:
    """d<A x, y> through apply, through the adjoint and through the matrix, against a finite difference."""
    op = data.draw(KINDS[kind]).map(lambda t: t.clone().requires_grad_() if t.is_floating_point() else t)
    live = [t for t in op.tensors() if t.is_floating_point()]
    x, y = vector(data, op.in_shape), vector(data, op.out_shape)
    if not live:
        assert not op.apply(x).requires_grad
        return
    forward = torch.autograd.grad((op.apply(x) * y).sum(), live)
    backward = torch.autograd.grad((x * op.adjoint(y)).sum(), live)
    dense = torch.autograd.grad(y.flatten() @ materialize(op) @ x.flatten(), live)
    step = 1e-6
    for k, (a, b, c) in enumerate(zip(forward, backward, dense, strict=True)):
        same(b, a)
        same(c, a)
        direction = vector(data, tuple(live[k].shape))
        ends = []
        for sign in (1, -1):
            shift = sign * step * direction
            moved = op.map(lambda t, k=k, shift=shift: t.detach() + shift if t is live[k] else t)
            ends.append((moved.apply(x) * y).sum().detach())
        # Central difference: the batch norm of a variance near 0 has third derivatives of 1e5 at most beside them.
        slope = (ends[0] - ends[1]) / (2 * step)
        scale = 1 + (a * direction).abs().sum() + max(abs(e) for e in ends)
        assert abs(slope - (a * direction).sum()) <= 1e-4 * scale


@every_kind
@settings(max_examples=15)
@given(data=st.data())
def test_queries_agree_with_the_matrix(kind: type[LinearOperator], data: st.DataObject) -> None:
    op = data.draw(KINDS[kind])
    matrix = matrix_of(op)
    same(materialize(absolute(op)), matrix.abs())
    same(row_sums(op), matrix.abs().sum(1).reshape(op.out_shape))
    same(column_sums(op), matrix.abs().sum(0).reshape(op.in_shape))
    same(frobenius(op).to(torch.float64), torch.linalg.vector_norm(matrix))
    assert (support(op).flatten() | (matrix == 0).all(1)).all()
    assert not one_entry_per_row(op) or ((matrix != 0).sum(1) <= 1).all()
    assert not one_entry_per_row(op.T) or ((matrix != 0).sum(0) <= 1).all()
    mask = vector(data, op.in_shape) > 0
    reached = propagate(op, mask)
    assert reached.shape == op.out_shape
    assert (reached.flatten() | (matrix[:, mask.flatten()] == 0).all(1)).all()


@every_kind
@settings(max_examples=12)
@given(data=st.data())
def test_stack_is_block_diagonal(kind: type[LinearOperator], data: st.DataObject) -> None:
    op = data.draw(KINDS[kind])
    ops = [op, op.map(lambda t: t.square() if t.is_floating_point() else t), op]
    assert len({signature(other) for other in ops}) == 1
    stacked = stack(ops)
    x, y = vector(data, (2, 3, *op.in_shape)), vector(data, (2, 3, *op.out_shape))
    same(stacked.apply(x), torch.stack([other.apply(x[:, k]) for k, other in enumerate(ops)], dim=1))
    same(stacked.adjoint(y), torch.stack([other.adjoint(y[:, k]) for k, other in enumerate(ops)], dim=1))


@every_kind
@settings(max_examples=12)
@given(data=st.data())
def test_rounding_is_covered_by_depth_and_magnitude(kind: type[LinearOperator], data: st.DataObject) -> None:
    narrow = data.draw(KINDS[kind]).to(torch.float32)
    op = narrow.to(torch.float64)
    size = torch.linalg.matrix_norm(matrix_of(op), 2)
    parts = magnitude(op)
    assert parts.absolute.dtype == torch.float64
    bound = parts.absolute + parts.relative * size
    # The matrix norm itself is rounded by 150 * 2^-53 at most, times a small constant.
    assert bound >= torch.linalg.matrix_norm(matrix_of(op).abs(), 2) * (1 - 1e-12)
    if parts.relative:
        return  # A callable: what it rounds is an assumption of the caller.
    x, y = vector(data, op.in_shape, torch.float32), vector(data, op.out_shape, torch.float32)
    gamma = depth(op) * 2**-24 / (1 - depth(op) * 2**-24)
    # The float64 side has its own rounding, 2^-29 of the float32 one.
    for found, truth, given_ in (
        (narrow.apply(x), op.apply(x.double()), x),
        (narrow.adjoint(y), op.adjoint(y.double()), y),
    ):
        assert (found - truth).norm() <= (gamma * (1 + 1e-6) + 1e-13) * bound * given_.double().norm()


@settings(max_examples=100)
@given(operators(), operators())
def test_signature_tells_geometries_apart(left: LinearOperator, right: LinearOperator) -> None:
    assert signature(left) == signature(left.map(torch.clone))
    if (type(left), left.in_shape, left.out_shape) != (type(right), right.in_shape, right.out_shape):
        assert signature(left) != signature(right)
