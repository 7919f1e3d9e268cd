"""Rounding errors of applying an operator: how many there are behind one entry, and what they are relative to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from operator import add
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.linops._base import LinearOperator, Scaled
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.circular_conv import CircularConv
from lipkit.linops.composites import Rules, StatedRounding, flow, fold, parts_of
from lipkit.linops.conv import Conv
from lipkit.linops.conv_exponential import ConvExponential
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.elementary import Dense, DenseStack, Diagonal, Index, Permute, Reshape
from lipkit.linops.fourier_matrices import rounding_of
from lipkit.linops.padding import copies
from lipkit.linops.pool import AvgPool
from lipkit.linops.sweep import Sweep
from lipkit.rounding.slacks import UNIT

# Covers the float64 rounding of a magnitude itself, for sums of up to 2^32 terms in any order.
_INFLATION = 1 + 1e-6
# Below this a square loses digits to underflow.
_SAFE = 1e-140


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


def _one_more(first: int, second: int) -> int:
    """Operations behind the sum of two numbers."""
    return max(first, second) + 1


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


@depth.register(CircularConv)
def _circular_conv_depth(op: CircularConv) -> int:
    # Three transforms, of the image, of the kernel and back, and the complex product of two sums between them; each is
    # relative to the size of the whole symbol, which is its `magnitude`; entry by entry too (`dominating`).
    transforms = 3 * rounding_of(op.spatial) / UNIT
    return math.ceil(transforms) + 2 * (max(op.weight.shape[0] // op.groups, op.weight.shape[1]) + 4)


@depth.register(ConvExponential)
def _conv_exponential_depth(op: ConvExponential) -> int:
    return depth(op.series)


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


def _scaled_depth(op: Scaled, inner: int) -> int:
    # One rounding of the product, one of the factor where it is wider than the vector.
    return inner + _terms(1, op) + 1


fold(
    depth,
    Rules(
        scale=_scaled_depth,
        compose=add,
        add=_one_more,
        concatenate=lambda parts: max(parts) + len(parts) - 1,
        diagonal=max,
    ),
)


@depth.register(Sweep)
def _sweep_depth(op: Sweep) -> int:
    return max(flow(op, depth, add, _one_more, backwards) for backwards in (False, True))


@depth.register(StatedRounding)
def _stated_depth(op: StatedRounding) -> int:
    return op.roundings


def most_copies(op: Index) -> int:
    """How often a gather uses one entry, at most."""
    used = op.index[op.index >= 0]
    return int(used.bincount().max()) if used.numel() else 0


@singledispatch
def rounding_is_bounded(op: LinearOperator) -> bool:
    """Whether `depth` and `magnitude` bound the rounding errors of an operator; if not, its norms are estimates.

    True unless a part is of a class that registers False, because what it computes is not known here.
    """
    return all(map(rounding_is_bounded, parts_of(op)))


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
        try:
            absolute, relative = _magnitude(op.to(torch.float64)), 0.0
        except _OnlyCallable:
            absolute, relative = 0.0, min(op.in_size, op.out_size) ** 0.5
    return Magnitude(torch.tensor(absolute, dtype=torch.float64, device=op.device), relative)


class _OnlyCallable(Exception):
    """Raised for a part that can only be applied: its entries are not known."""


@singledispatch
def _magnitude(_: LinearOperator) -> float:
    raise _OnlyCallable


@_magnitude.register(Dense)
def _dense_magnitude(op: Dense) -> float:
    # Norms of rows and columns: sums of absolute values without a copy of these.
    rows, columns = (torch.linalg.vector_norm(op.weight, ord=1, dim=axis) for axis in (1, 0))
    return _smaller(torch.linalg.vector_norm(op.weight), rows, columns)


@_magnitude.register(DenseStack)
def _dense_stack_magnitude(op: DenseStack) -> float:
    return _smaller(torch.linalg.vector_norm(op.weight), op.weight.abs().sum(2), op.weight.abs().sum(1))


@_magnitude.register(Conv)
def _conv_magnitude(op: Conv) -> float:
    # The norm of the padding is the root of the most copies it makes of one entry.
    most = math.prod(copies(n, sides, op.mode) for n, sides in zip(op.spatial, op.padding, strict=True))
    return _mixed(*_tap_sums(op.weight, op.groups)) * most**0.5 * _INFLATION


@_magnitude.register(CircularConv)
def _circular_conv_magnitude(op: CircularConv) -> float:
    # By Cauchy and Schwarz more than the Frobenius norm of the sum of |W| over taps.
    return float(op.symbol_size()) * _INFLATION


@_magnitude.register(ConvExponential)
def _conv_exponential_magnitude(op: ConvExponential) -> float:
    return _magnitude(op.series)


@_magnitude.register(ConvTranspose)
def _conv_transpose_magnitude(op: ConvTranspose) -> float:
    return _mixed(*_tap_sums(op.weight, op.groups))


@_magnitude.register(AvgPool)
def _avg_pool_magnitude(op: AvgPool) -> float:
    return _magnitude(op.conv)


@_magnitude.register(Diagonal)
def _diagonal_magnitude(op: Diagonal) -> float:
    return float(op.scale.abs().max()) * _INFLATION if op.scale.numel() else 0.0


@_magnitude.register(BatchNorm)
def _batch_norm_magnitude(op: BatchNorm) -> float:
    return _magnitude(op.diagonal)


@_magnitude.register(Reshape)
@_magnitude.register(Permute)
def _isometry_magnitude(_: Reshape | Permute) -> float:
    return 1.0


@_magnitude.register(Index)
def _index_magnitude(op: Index) -> float:
    return most_copies(op) ** 0.5 * _INFLATION


def _hypot(parts: Sequence[float]) -> float:
    return math.hypot(*parts) * _INFLATION


fold(
    _magnitude,
    Rules(
        scale=lambda op, inner: float(op.factor.abs()) * inner * _INFLATION,
        compose=lambda outer, inner: outer * inner * _INFLATION,
        add=lambda first, second: (first + second) * _INFLATION,
        concatenate=_hypot,
        diagonal=max,
    ),
)


@_magnitude.register(StatedRounding)
def _stated_magnitude(op: StatedRounding) -> float:
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
