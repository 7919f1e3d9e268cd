"""The entrywise absolute value of an operator, and its row and column sums."""

from dataclasses import replace
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.block import BlockColumn, BlockDiagonal, BlockRow
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.dense import Dense
from lipkit.linops.diagonal import Diagonal
from lipkit.linops.index import Index, Permute, Reshape
from lipkit.linops.padding import Padding
from lipkit.linops.pool import AvgPool
from lipkit.linops.queries.materialize import materialize
from lipkit.linops.queries.stack import DenseStack


@singledispatch
def absolute(op: LinearOperator) -> LinearOperator:
    """|A|: the operator whose matrix has the absolute values of the entries of A, live in its tensors.

    Exact for every operator. Structure is kept where no two parts of it meet in one entry; elsewhere the matrix is
    formed, which `materialize` limits.
    """
    matrix = Dense(materialize(op).abs())
    return Reshape(matrix.out_shape, op.out_shape) @ matrix @ Reshape(op.in_shape, matrix.in_shape)


def row_sums(op: LinearOperator) -> Float[Tensor, "..."]:
    """sum_j |A_ij| for every output i: the l-infinity norm of the operator is their largest."""
    return _sums(absolute(op))


def column_sums(op: LinearOperator) -> Float[Tensor, "..."]:
    """sum_i |A_ij| for every input j: the l1 norm of the operator is their largest."""
    return _sums(absolute(op).T)


def _sums(op: LinearOperator) -> Float[Tensor, "..."]:
    return op.apply(torch.ones(op.in_shape, dtype=op.dtype, device=op.device))


@absolute.register(Dense)
@absolute.register(DenseStack)
@absolute.register(ConvTranspose)
def _weight(op: Dense | DenseStack | ConvTranspose) -> LinearOperator:
    return replace(op, weight=op.weight.abs())


@absolute.register(Conv)
def _conv(op: Conv) -> LinearOperator:
    if taps_meet(op):
        return absolute.dispatch(LinearOperator)(op)
    return replace(op, weight=op.weight.abs())


@absolute.register(Diagonal)
def _diagonal(op: Diagonal) -> LinearOperator:
    return replace(op, scale=op.scale.abs())


@absolute.register(BatchNorm)
def _batch_norm(op: BatchNorm) -> LinearOperator:
    return op if op.weight is None else replace(op, weight=op.weight.abs())


@absolute.register(AvgPool)
def _avg_pool(op: AvgPool) -> LinearOperator:
    return replace(op, divisor=abs(op.divisor))


@absolute.register(Index)
@absolute.register(Permute)
@absolute.register(Reshape)
def _same(op: Index | Permute | Reshape) -> LinearOperator:
    return op


@absolute.register(Adjoint)
def _adjoint(op: Adjoint) -> LinearOperator:
    return absolute(op.inner).T


@absolute.register(Scaled)
def _scaled(op: Scaled) -> LinearOperator:
    return Scaled(op.factor.abs(), absolute(op.inner))


@absolute.register(BlockRow)
@absolute.register(BlockColumn)
@absolute.register(BlockDiagonal)
def _block(op: BlockRow | BlockColumn | BlockDiagonal) -> LinearOperator:
    return replace(op, parts=tuple(map(absolute, op.parts)))


@absolute.register(Compose)
def _compose(op: Compose) -> LinearOperator:
    # (A B)_ij = sum_k A_ik B_kj has one term at most, so nothing can cancel and |A B| = |A| |B|.
    if one_entry_per_row(op.outer) or one_entry_per_row(op.inner.T):
        return absolute(op.outer) @ absolute(op.inner)
    return absolute.dispatch(LinearOperator)(op)


def taps_meet(op: Conv) -> bool:
    """Whether two taps of one window may read the same entry of the unpadded input, through the padding.

    With zeros they never do; around a circle they do not if the dilated kernel is not longer than the axis.
    """
    if op.mode is Padding.ZEROS:
        return False
    axes = zip(op.padding, op.extents, op.spatial, strict=True)
    return any(any(sides) and (op.mode is not Padding.CIRCULAR or length > n) for sides, length, n in axes)


def one_entry_per_row(op: LinearOperator) -> bool:
    """Whether every row of the matrix is known to have at most one entry."""
    match op:
        case Index() | Reshape() | Permute() | Diagonal() | BatchNorm():
            return True
        case Adjoint(Reshape() | Permute() | Diagonal() | BatchNorm()):
            return True
        case Compose(outer, inner):
            return one_entry_per_row(outer) and one_entry_per_row(inner)
        case Adjoint(Compose(outer, inner)):
            return one_entry_per_row(inner.T) and one_entry_per_row(outer.T)
        case Scaled(_, inner):
            return one_entry_per_row(inner)
        case Adjoint(Scaled(_, inner)):
            return one_entry_per_row(inner.T)
        case _:
            return False
