"""An operator that is nowhere smaller than the absolute value of another, at any size."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import final

import torch
from torch import Tensor

from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Shape, Sum
from lipkit.linops.block import BlockColumn, BlockDiagonal, BlockRow
from lipkit.linops.conv import Conv
from lipkit.linops.function import Function
from lipkit.linops.queries.absolute import absolute, one_entry_per_row, taps_meet
from lipkit.linops.stated_rounding import Stated
from lipkit.linops.sweep import Sweep

# Rows of a callable's matrix are formed together while they stay below this many entries.
_CHUNK_ENTRIES = 2**22


def dominating(op: LinearOperator, written_out: int = 0) -> LinearOperator:
    """D >= |A| entrywise, built from the absolute values of the parts: |A B| <= |A| |B|, |A + B| <= |A| + |B|.

    A matrix of at most `written_out` entries in which parts meet is formed, so that D = |A| there; beyond that nothing
    large is ever formed. With `written_out=0` the rounding errors of A x, evaluated part by part in a standard model of
    arithmetic, are within gamma_depth D |x|. Cost of D: that of A; of a callable, one adjoint for each output.
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
        case Adjoint(inner) | Scaled(_, inner) | Stated(inner):
            return _parts_meet(inner)
        case Sum() | Sweep() | Function():
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
def _conv(op: Conv, _written_out: int) -> LinearOperator:
    return replace(op, weight=op.weight.abs())


@_dominating.register(Adjoint)
def _adjoint(op: Adjoint, written_out: int) -> LinearOperator:
    return dominating(op.inner, written_out).T


@_dominating.register(Scaled)
def _scaled(op: Scaled, written_out: int) -> LinearOperator:
    return Scaled(op.factor.abs(), dominating(op.inner, written_out))


@_dominating.register(Stated)
def _stated(op: Stated, written_out: int) -> LinearOperator:
    return dominating(op.inner, written_out)


@_dominating.register(Compose)
def _compose(op: Compose, written_out: int) -> LinearOperator:
    return dominating(op.outer, written_out) @ dominating(op.inner, written_out)


@_dominating.register(Sum)
def _sum(op: Sum, written_out: int) -> LinearOperator:
    return dominating(op.left, written_out) + dominating(op.right, written_out)


@_dominating.register(Sweep)
def _sweep(op: Sweep, written_out: int) -> LinearOperator:
    return replace(op, edges=tuple((k, j, dominating(edge, written_out)) for k, j, edge in op.edges))


@_dominating.register(BlockRow)
@_dominating.register(BlockColumn)
@_dominating.register(BlockDiagonal)
def _block(op: BlockRow | BlockColumn | BlockDiagonal, written_out: int) -> LinearOperator:
    return replace(op, parts=tuple(dominating(part, written_out) for part in op.parts))


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
            count = min(step, self.out_size - at)
            units = like.new_zeros((count, self.out_size))
            units[torch.arange(count), torch.arange(at, at + count)] = 1
            rows = self.inner.adjoint(units.reshape(count, *self.out_shape))
            yield at, rows.reshape(count, self.in_size).abs()
