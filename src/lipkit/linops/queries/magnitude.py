"""How large the entries of an operator are without their signs: what its rounding errors are relative to."""

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

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
from lipkit.linops.queries.frobenius import frobenius
from lipkit.linops.queries.rounding_depth import most_copies
from lipkit.linops.queries.stack import DenseStack
from lipkit.linops.stated_rounding import Stated
from lipkit.linops.sweep import Sweep

# Covers the float64 rounding of a magnitude itself, for sums of up to 2^32 terms in any order.
_INFLATION = 1 + 1e-6
# Below this a square loses digits to underflow.
_SAFE = 1e-140


@final
@dataclass(frozen=True, eq=False)
class Magnitude:
    """|| |A| ||_2 <= absolute + relative ||A||_2, where |A| has the absolute values of the parts as evaluated."""

    absolute: Float64[Tensor, ""]
    relative: float


def magnitude(op: LinearOperator) -> Magnitude:
    """An upper bound, in float64, of the spectral norm of |A| for the operator evaluated as it is written.

    |A B| is |A| |B| here, because the rounding errors of B pass through A. Of a callable only ||A|| can be known:
    || |A| ||_2 <= ||A||_F <= min(in, out)^(1/2) ||A||_2, and an operator that contains one is treated as a whole in
    this way, which assumes that its inner results do not cancel catastrophically. Cost: one pass over the weights.
    """
    with torch.no_grad():
        found = _magnitude(op.to(torch.float64))
    absolute, relative = (0.0, min(op.in_size, op.out_size) ** 0.5) if found is None else (found, 0.0)
    return Magnitude(torch.tensor(absolute, dtype=torch.float64, device=op.device), relative)


@singledispatch
def _magnitude(_: LinearOperator) -> float | None:
    """The bound, or None if the operator contains a callable."""
    return None


@_magnitude.register(Dense)
def _dense(op: Dense) -> float:
    return _smaller(frobenius(op), op.weight.abs().sum(1), op.weight.abs().sum(0))


@_magnitude.register(DenseStack)
def _dense_stack(op: DenseStack) -> float:
    return _smaller(frobenius(op), op.weight.abs().sum(2), op.weight.abs().sum(1))


@_magnitude.register(Conv)
def _conv(op: Conv) -> float:
    # The norm of the padding is the root of the most copies it makes of one entry.
    most = math.prod(copies(n, sides, op.mode) for n, sides in zip(op.spatial, op.padding, strict=True))
    return _mixed(*_tap_sums(op.weight, op.groups)) * most**0.5 * _INFLATION


@_magnitude.register(ConvTranspose)
def _conv_transpose(op: ConvTranspose) -> float:
    return _mixed(*_tap_sums(op.weight, op.groups))


@_magnitude.register(AvgPool)
def _avg_pool(op: AvgPool) -> float | None:
    return _magnitude(op.conv)


@_magnitude.register(Diagonal)
def _diagonal(op: Diagonal) -> float:
    return float(op.scale.abs().max()) * _INFLATION if op.scale.numel() else 0.0


@_magnitude.register(BatchNorm)
def _batch_norm(op: BatchNorm) -> float | None:
    return _magnitude(op.diagonal)


@_magnitude.register(Reshape)
@_magnitude.register(Permute)
def _isometry(_: Reshape | Permute) -> float:
    return 1.0


@_magnitude.register(Index)
def _index(op: Index) -> float:
    return most_copies(op) ** 0.5 * _INFLATION


@_magnitude.register(Adjoint)
def _adjoint(op: Adjoint) -> float | None:
    return _magnitude(op.inner)


@_magnitude.register(Scaled)
def _scaled(op: Scaled) -> float | None:
    inner = _magnitude(op.inner)
    return None if inner is None else float(op.factor.abs()) * inner * _INFLATION


@_magnitude.register(Compose)
def _compose(op: Compose) -> float | None:
    outer, inner = _magnitude(op.outer), _magnitude(op.inner)
    return None if outer is None or inner is None else outer * inner * _INFLATION


@_magnitude.register(Sum)
def _sum(op: Sum) -> float | None:
    left, right = _magnitude(op.left), _magnitude(op.right)
    return None if left is None or right is None else (left + right) * _INFLATION


@_magnitude.register(BlockRow)
@_magnitude.register(BlockColumn)
def _block(op: BlockRow | BlockColumn) -> float | None:
    parts = [_magnitude(part) for part in op.parts]
    known = [part for part in parts if part is not None]
    return math.hypot(*known) * _INFLATION if len(known) == len(parts) else None


@_magnitude.register(BlockDiagonal)
def _block_diagonal(op: BlockDiagonal) -> float | None:
    parts = [_magnitude(part) for part in op.parts]
    known = [part for part in parts if part is not None]
    return max(known) if len(known) == len(parts) else None


@_magnitude.register(Sweep)
def _sweep(op: Sweep) -> float | None:
    sizes: dict[int, float] = {op.source: 1.0}
    for k, j, edge in op.edges:
        part = _magnitude(edge)
        if part is None:
            return None
        sizes[k] = (sizes.get(k, 0.0) + part * sizes[j]) * _INFLATION
    return sizes[op.sink]


@_magnitude.register(Stated)
def _stated(op: Stated) -> float:
    return op.size


def _smaller(size: Tensor, rows: Tensor, columns: Tensor) -> float:
    """The smaller of ||A||_F and (||A||_1 ||A||_inf)^(1/2), both of which bound || |A| ||_2."""
    mixed = _mixed(rows, columns)
    return min(mixed, float(size) * _INFLATION) if size > _SAFE else mixed


def _mixed(rows: Tensor, columns: Tensor) -> float:
    """(||A||_1 ||A||_inf)^(1/2), from the absolute row and column sums."""
    if not rows.numel() or not columns.numel():
        return 0.0
    largest = torch.stack([rows.max(), columns.max()]).tolist()
    return math.sqrt(largest[0]) * math.sqrt(largest[1]) * _INFLATION


def _tap_sums(weight: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Bounds of the absolute row and column sums of a convolution: all taps of one channel, on either side."""
    taps = weight.abs().flatten(2).sum(2)
    return taps.sum(1), taps.reshape(groups, -1, taps.shape[1]).sum(1)
