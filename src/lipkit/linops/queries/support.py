"""Which outputs an operator can reach at all."""

from functools import singledispatch

import torch
from jaxtyping import Bool
from torch import Tensor

from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Sum
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.block import BlockColumn, BlockDiagonal, BlockRow
from lipkit.linops.diagonal import Diagonal
from lipkit.linops.index import Index, Permute, Reshape
from lipkit.linops.stated_rounding import Stated
from lipkit.linops.sweep import Sweep


def support(op: LinearOperator) -> Bool[Tensor, "..."]:
    """True for every output that can be non-zero; False only where the structure forces a zero for all weights."""
    return propagate(op, torch.ones(op.in_shape, dtype=torch.bool, device=op.device))


@singledispatch
def propagate(op: LinearOperator, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """The outputs that can be non-zero when the inputs outside `mask` are zero; by default all, if any input is on."""
    return mask.any().expand(op.out_shape)


@propagate.register(Reshape)
@propagate.register(Permute)
@propagate.register(Index)
def _move(op: Reshape | Permute | Index, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return op.apply(mask.to(torch.float64)) != 0


@propagate.register(Diagonal)
@propagate.register(BatchNorm)
def _entrywise(_: Diagonal | BatchNorm, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return mask


@propagate.register(Scaled)
def _scaled(op: Scaled, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return propagate(op.inner, mask)


@propagate.register(Adjoint)
def _adjoint(op: Adjoint, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    match op.inner:
        case Reshape() | Permute() | Index():
            return op.apply(mask.to(torch.float64)) != 0
        case Diagonal() | BatchNorm():
            return mask
        case Compose(outer, inner):
            return propagate(inner.T, propagate(outer.T, mask))
        case _:
            return propagate.dispatch(LinearOperator)(op, mask)


@propagate.register(Compose)
def _compose(op: Compose, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return propagate(op.outer, propagate(op.inner, mask))


@propagate.register(Sum)
def _sum(op: Sum, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return propagate(op.left, mask) | propagate(op.right, mask)


@propagate.register(BlockColumn)
def _column(op: BlockColumn, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return torch.cat([propagate(part, mask).flatten() for part in op.parts])


@propagate.register(BlockRow)
def _row(op: BlockRow, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    pieces = mask.split([part.in_size for part in op.parts])
    reached = [propagate(part, piece.reshape(part.in_shape)) for part, piece in zip(op.parts, pieces, strict=True)]
    return torch.stack(reached).any(0)


@propagate.register(BlockDiagonal)
def _block_diagonal(op: BlockDiagonal, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return torch.stack([propagate(part, piece) for part, piece in zip(op.parts, mask, strict=True)])


@propagate.register(Sweep)
def _sweep(op: Sweep, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    masks = {op.source: mask}
    for k, j, edge in op.edges:
        reached = propagate(edge, masks[j])
        masks[k] = masks[k] | reached if k in masks else reached
    return masks[op.sink]


@propagate.register(Stated)
def _stated(op: Stated, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    return propagate(op.inner, mask)
