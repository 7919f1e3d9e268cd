"""How deep the sums of an operator are: the number of rounding errors behind one entry."""

import math
from functools import singledispatch

from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Sum
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.block import BlockColumn, BlockDiagonal, BlockRow
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.dense import Dense
from lipkit.linops.diagonal import Diagonal
from lipkit.linops.index import Index, Permute, Reshape
from lipkit.linops.padding import copies
from lipkit.linops.pool import AvgPool
from lipkit.linops.queries.stack import DenseStack
from lipkit.linops.stated_rounding import Stated
from lipkit.linops.sweep import Sweep


@singledispatch
def depth(op: LinearOperator) -> int:
    """The largest number d of rounded operations behind one entry of an output, of the operator or of its adjoint.

    In a standard model of arithmetic with unit roundoff u the computed y^ then satisfies |y^ - A x| <= gamma_d |A| |x|
    entrywise, gamma_d = d u / (1 - d u), whatever the order of the sums, as long as convolutions are summed tap by tap
    (not by FFT or Winograd). What a callable does is not known; it is taken for a product with a matrix of its shape
    and then one with its transpose.
    """
    return _terms(op.in_size + op.out_size, op)


def _terms(count: int, op: LinearOperator) -> int:
    """Operations behind a sum of `count` products; torch computes a complex product by three real ones."""
    # Three real sums of count + 1 roundings each, combined: an error of sqrt(10) gamma_(count + 4).
    return 4 * (count + 4) if op.dtype.is_complex else count


@depth.register(Dense)
def _dense_depth(op: Dense) -> int:
    return _terms(max(op.weight.shape), op)


@depth.register(DenseStack)
def _dense_stack_depth(op: DenseStack) -> int:
    return _terms(max(op.weight.shape[1:]), op)


@depth.register(Conv)
def _conv_depth(op: Conv) -> int:
    added = [copies(n, sides, op.mode) - 1 for n, sides in zip(op.spatial, op.padding, strict=True)]
    c_out, c_in = op.weight.shape[0] // op.groups, op.weight.shape[1]
    return _terms(max(c_in, c_out) * math.prod(op.kernel), op) + sum(added)


@depth.register(ConvTranspose)
def _conv_transpose_depth(op: ConvTranspose) -> int:
    return _terms(max(op.weight.shape[0] // op.groups, op.weight.shape[1]) * math.prod(op.kernel), op)


@depth.register(AvgPool)
def _avg_pool_depth(op: AvgPool) -> int:
    return math.prod(op.kernel) + 1


@depth.register(Diagonal)
def _diagonal_depth(op: Diagonal) -> int:
    return _terms(1, op)


@depth.register(BatchNorm)
def _batch_norm_depth(_: BatchNorm) -> int:
    return 4


@depth.register(Reshape)
@depth.register(Permute)
def _isometry_depth(_: Reshape | Permute) -> int:
    return 0


@depth.register(Index)
def _index_depth(op: Index) -> int:
    return max(most_copies(op) - 1, 0)


@depth.register(Adjoint)
def _adjoint_depth(op: Adjoint) -> int:
    return depth(op.inner)


@depth.register(Compose)
def _compose_depth(op: Compose) -> int:
    return depth(op.outer) + depth(op.inner)


@depth.register(Sum)
def _sum_depth(op: Sum) -> int:
    return max(depth(op.left), depth(op.right)) + 1


@depth.register(Scaled)
def _scaled_depth(op: Scaled) -> int:
    # One rounding of the product, one of the factor where it is wider than the vector.
    return depth(op.inner) + _terms(1, op) + 1


@depth.register(BlockRow)
@depth.register(BlockColumn)
def _block_depth(op: BlockRow | BlockColumn) -> int:
    return max(map(depth, op.parts)) + len(op.parts) - 1


@depth.register(BlockDiagonal)
def _block_diagonal_depth(op: BlockDiagonal) -> int:
    return max(map(depth, op.parts))


@depth.register(Sweep)
def _sweep_depth(op: Sweep) -> int:
    longest = {op.source: 0}
    for k, j, edge in op.edges:
        # Each further edge into a value is one more addition.
        through = longest[j] + depth(edge)
        longest[k] = max(longest[k], through) + 1 if k in longest else through
    back = {op.sink: 0}
    for k, j, edge in reversed(op.edges):
        through = back[k] + depth(edge)
        back[j] = max(back[j], through) + 1 if j in back else through
    return max(longest[op.sink], back[op.source])


@depth.register(Stated)
def _stated_depth(op: Stated) -> int:
    return op.roundings


def most_copies(op: Index) -> int:
    """How often a gather uses one entry, at most."""
    used = op.index[op.index >= 0]
    return int(used.bincount().max()) if used.numel() else 0
