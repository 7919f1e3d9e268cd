"""The entrywise absolute value of an operator, its row and column sums, and operators that are nowhere smaller."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit._runtime import refuse_late
from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Shape, Sum
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.block import BlockColumn, BlockDiagonal, BlockRow
from lipkit.linops.circular_conv import CircularConv
from lipkit.linops.composites import StatedRounding, rebuild
from lipkit.linops.conv import Conv
from lipkit.linops.conv_exponential import ConvExponential
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.elementary import Dense, DenseStack, Diagonal, Index, Permute, Reshape
from lipkit.linops.function import LinearFunction
from lipkit.linops.padding import Padding
from lipkit.linops.pool import AvgPool
from lipkit.linops.queries.matrix_forms import materialize
from lipkit.linops.sweep import Sweep

# Rows of a callable's matrix are formed together while they stay below this many entries.
_CHUNK_ENTRIES = 2**22


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


@absolute.register(CircularConv)
def _circular_conv(op: CircularConv) -> LinearOperator:
    # Numbers >= 0 are added up directly: what cancels in Fourier space would leave rounding errors in small sums.
    return absolute(op.conv)


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


rebuild(absolute, composites=(Adjoint, BlockColumn, BlockDiagonal, BlockRow))


@absolute.register(Scaled)
def _scaled(op: Scaled) -> LinearOperator:
    return Scaled(op.factor.abs(), absolute(op.inner))


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


def dominating(op: LinearOperator, written_out: int = 0) -> LinearOperator:
    """D >= |A| entrywise, built from the absolute values of the parts: |A B| <= |A| |B|, |A + B| <= |A| + |B|.

    A matrix of at most `written_out` entries in which parts meet is formed, so that D = |A| there; beyond that nothing
    large is ever formed. With `written_out` >= 1 leaves have D = |A|, whatever their rounding. With `written_out=0` the
    rounding errors of A x, evaluated part by part in a standard model of arithmetic, are within gamma_depth D |x|.
    Cost of D: that of A; of a callable, one adjoint for each output.
    """
    if written_out and _parts_meet(op) and op.in_size * op.out_size <= written_out:
        return absolute.dispatch(LinearOperator)(op)
    return _dominating(op, written_out)


def _parts_meet(op: LinearOperator) -> bool:
    """Whether several parts may contribute to one entry of the matrix, so that they could cancel."""
    match op:
        case Compose(outer, inner):
            apart = one_entry_per_row(outer) or one_entry_per_row(inner.T)
            return not apart or _parts_meet(outer) or _parts_meet(inner)
        case Adjoint(inner) | Scaled(_, inner) | StatedRounding(inner):
            return _parts_meet(inner)
        case ConvExponential() | Sum() | Sweep() | LinearFunction():
            return True
        case Conv():
            return taps_meet(op)
        case BlockRow(parts) | BlockColumn(parts) | BlockDiagonal(parts):
            return any(map(_parts_meet, parts))
        case _:
            return False


@singledispatch
def _dominating(op: LinearOperator, _written_out: int) -> LinearOperator:
    # Operators with structure answer without a matrix; anything else is taken for a callable.
    known = absolute.dispatch(type(op)) is not absolute.dispatch(LinearOperator)
    return absolute(op) if known else _Rowwise(op)


@_dominating.register(Conv)
def _dominating_conv(op: Conv, _written_out: int) -> LinearOperator:
    return replace(op, weight=op.weight.abs())


@_dominating.register(CircularConv)
def _dominating_circular_conv(op: CircularConv, written_out: int) -> LinearOperator:
    if written_out:
        return absolute(op)
    # Rounding in Fourier space spreads over all entries: |error_i| <= ||error|| <= c ||x||_2 <= c sum_j |x_j|.
    column, row = torch.ones(op.out_size, 1), torch.ones(1, op.in_size)
    spread = Dense(column.to(op.weight) * op.symbol_size().to(op.weight)) @ Dense(row.to(op.weight))
    return Reshape((op.out_size,), op.out_shape) @ spread @ Reshape(op.in_shape, (op.in_size,))


@_dominating.register(ConvExponential)
def _dominating_conv_exponential(op: ConvExponential, written_out: int) -> LinearOperator:
    return dominating(op.series, written_out)


rebuild(_dominating, step=dominating)


@_dominating.register(Scaled)
def _dominating_scaled(op: Scaled, written_out: int) -> LinearOperator:
    return Scaled(op.factor.abs(), dominating(op.inner, written_out))


@_dominating.register(StatedRounding)
def _dominating_stated(op: StatedRounding, written_out: int) -> LinearOperator:
    # The statement is about other numbers.
    return dominating(op.inner, written_out)


@final
@dataclass(frozen=True, eq=False)
class _Rowwise(LinearOperator):
    """|A| of an operator without structure, formed a few rows at a time and forgotten."""

    inner: LinearOperator

    @property
    def in_shape(self) -> Shape:
        return self.inner.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.inner.out_shape

    def _apply(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        found = torch.cat([flat @ rows.mT for _, rows in self._rows(x)], dim=1)
        return found.reshape(x.shape[0], *self.out_shape)

    def _adjoint(self, y: Tensor) -> Tensor:
        flat = y.flatten(1)
        found = flat.new_zeros((y.shape[0], self.in_size))
        for at, rows in self._rows(y):
            found = found + flat[:, at : at + len(rows)] @ rows
        return found.reshape(y.shape[0], *self.in_shape)

    def _rows(self, like: Tensor) -> Iterator[tuple[int, Tensor]]:
        step = max(1, _CHUNK_ENTRIES // max(self.in_size, self.out_size))
        for at in range(0, self.out_size, step):
            refuse_late()
            count = min(step, self.out_size - at)
            # The operator may be complex where its absolute value is not.
            units = like.new_zeros((count, self.out_size), dtype=self.inner.dtype)
            units[torch.arange(count), torch.arange(at, at + count)] = 1
            rows = self.inner.adjoint(units.reshape(count, *self.out_shape))
            yield at, rows.reshape(count, self.in_size).abs()
