"""The Frobenius norm of an operator, in closed form wherever its structure gives one."""

from collections.abc import Sequence
from functools import singledispatch

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lipkit.linops._base import Compose, LinearOperator
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.circular_conv import CircularConv
from lipkit.linops.composites import Rules, fold
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.elementary import Dense, DenseStack, Diagonal, Index, Permute, Reshape
from lipkit.linops.padding import Padding, positions
from lipkit.linops.pool import AvgPool
from lipkit.linops.queries.matrix_forms import materialize


@singledispatch
def frobenius(op: LinearOperator) -> Float[Tensor, ""]:
    """(sum_ij |A_ij|^2)^(1/2), exact up to rounding in the dtype of the operator and live in its tensors.

    Cost: proportional to the weights for convolutions, matrices, pools, gathers and blocks of them; otherwise the
    matrix is formed, which `materialize` limits.
    """
    return torch.linalg.vector_norm(materialize(op))


@frobenius.register(Dense)
@frobenius.register(DenseStack)
def _weight(op: Dense | DenseStack) -> Float[Tensor, ""]:
    return torch.linalg.vector_norm(op.weight)


@frobenius.register(Diagonal)
def _diagonal(op: Diagonal) -> Float[Tensor, ""]:
    return torch.linalg.vector_norm(op.scale.expand(op.shape))


@frobenius.register(BatchNorm)
def _batch_norm(op: BatchNorm) -> Float[Tensor, ""]:
    return _diagonal(op.diagonal)


@frobenius.register(Index)
def _index(op: Index) -> Float[Tensor, ""]:
    return (op.index >= 0).sum().to(torch.float64).sqrt()


@frobenius.register(Reshape)
@frobenius.register(Permute)
def _isometry(op: Reshape | Permute) -> Float[Tensor, ""]:
    return torch.tensor(op.in_size, dtype=torch.float64).sqrt()


@frobenius.register(CircularConv)
def _circular_conv(op: CircularConv) -> Float[Tensor, ""]:
    return _conv(op.conv)


@frobenius.register(AvgPool)
def _avg_pool(op: AvgPool) -> Float[Tensor, ""]:
    return op.channels**0.5 * _conv(op.conv)


def _together(parts: Sequence[Float[Tensor, ""]]) -> Float[Tensor, ""]:
    # Parts without tensors say so on the CPU.
    devices = [part.device for part in parts if part.device.type != "cpu"]
    return torch.linalg.vector_norm(torch.stack([part.to(devices[0] if devices else "cpu") for part in parts]))


fold(
    frobenius,
    Rules(scale=lambda op, inner: op.factor.abs().to(inner) * inner, concatenate=_together, diagonal=_together),
)


@frobenius.register(Compose)
def _compose(op: Compose) -> Float[Tensor, ""]:
    if isinstance(op.outer, Reshape | Permute):
        return frobenius(op.inner)
    if isinstance(op.inner, Reshape | Permute):
        return frobenius(op.outer)
    return frobenius.dispatch(LinearOperator)(op)


@frobenius.register(ConvTranspose)
def _conv_transpose(op: ConvTranspose) -> Float[Tensor, ""]:
    axes = zip(op.out_shape[1:], op.padding, op.spatial, op.stride, op.dilation, op.kernel, strict=True)
    return _tap_norm(op.weight, [_sources(n, (p, p), Padding.ZEROS, *rest) for n, p, *rest in axes])


@frobenius.register(Conv)
def _conv(op: Conv) -> Float[Tensor, ""]:
    axes = zip(op.spatial, op.padding, op.out_shape[1:], op.stride, op.dilation, op.kernel, strict=True)
    return _tap_norm(op.weight, [_sources(n, sides, op.mode, *rest) for n, sides, *rest in axes])


def _sources(
    size: int, sides: tuple[int, int], mode: Padding, count: int, stride: int, dilation: int, kernel: int
) -> Int64[Tensor, "count kernel"]:
    """The entry of the axis that tap t of window i reads, -1 for a padded zero."""
    reach = torch.arange(count)[:, None] * stride + torch.arange(kernel) * dilation
    table = positions(size, sides, mode)
    # The windows that only an output padding makes room for end beyond the table, in zeros.
    return torch.where(reach < len(table), table[reach.clamp(max=len(table) - 1)], -1)


def _tap_norm(weight: Tensor, sources: Sequence[Int64[Tensor, "_ _"]]) -> Float[Tensor, ""]:
    """Norm of the matrix whose entry (i, j) of a channel pair is the sum of the taps of window i that read entry j.

    Axes are independent. On each, the entries fall in few classes: the sets of taps that add up there. One row for each
    class, weighted by the root of how often it occurs, replaces the whole axis.
    """
    for axis, source in enumerate(sources, start=2):
        classes, counts = _classes(source)
        rows = counts.to(weight.real.dtype).sqrt()[:, None] * classes
        weight = (weight.movedim(axis, -1) @ rows.to(weight).mT).movedim(-1, axis)
    return torch.linalg.vector_norm(weight)


def _classes(source: Int64[Tensor, "count kernel"]) -> tuple[Bool[Tensor, "classes kernel"], Int64[Tensor, " classes"]]:
    ordered = source.sort(dim=1).values
    meeting = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    # Away from the border every tap reads an entry of its own: only the few other windows are compared tap by tap.
    alone = torch.eye(source.shape[1], dtype=torch.bool)
    border = source[meeting]
    same = border[:, :, None] == border[:, None, :]
    first = (border >= 0) & ~(same & alone.new_ones(alone.shape).tril(-1)).any(-1)
    joint, counts = same[first].unique(dim=0, return_counts=True)
    return torch.cat([alone, joint]), torch.cat([(source[~meeting] >= 0).sum(0), counts])
