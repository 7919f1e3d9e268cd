"""Operators in another form: one as a dense matrix, many of one geometry as one block-diagonal operator."""

from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from functools import singledispatch

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, TooLargeError
from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Sum
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.block import BlockDiagonal
from lipkit.linops.circular_conv import CircularConv
from lipkit.linops.composites import StatedRounding, parts_of, with_parts
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.elementary import Dense, DenseStack, Diagonal, Permute, Reshape
from lipkit.linops.sweep import Sweep

Convolution = CircularConv | Conv | ConvTranspose

# Columns are computed together while inputs and outputs of one application stay below this many entries.
_CHUNK_ENTRIES = 2**24
# Entries of a matrix that is formed without being asked for: 1 GiB in float64.
ENTRIES = 2**27


def materialize(op: LinearOperator, limit: int = ENTRIES) -> Inexact[Tensor, "out in"]:
    """The matrix of the operator between flattened tensors, in its dtype, differentiable in its tensors.

    Cost: the operator (or its adjoint, whichever side is smaller) applied to the identity, and out * in entries, of
    which `limit` are allowed; a `Dense` already is its matrix.
    """
    entries = op.in_size * op.out_size
    if entries > limit and not isinstance(op, Dense):
        raise TooLargeError(
            f"The matrix of {op} would have {op.out_size} x {op.in_size} = {entries} entries, the limit is {limit}; "
            f"use the matrix-free Lanczos, or raise the limit."
        )
    return _materialize(op)


@singledispatch
def _materialize(op: LinearOperator) -> Inexact[Tensor, "out in"]:
    return _by_images(op)


def _by_images(op: LinearOperator) -> Inexact[Tensor, "out in"]:
    if op.in_size <= op.out_size:
        return _images(op).mT
    return _images(op.T).conj()


@_materialize.register(Dense)
def _dense_matrix(op: Dense) -> Inexact[Tensor, "out in"]:
    return op.weight


@_materialize.register(Adjoint)
def _adjoint_matrix(op: Adjoint) -> Inexact[Tensor, "out in"]:
    return _materialize(op.inner).mH


@_materialize.register(StatedRounding)
def _stated_matrix(op: StatedRounding) -> Inexact[Tensor, "out in"]:
    return _materialize(op.inner)


@_materialize.register(Compose)
def _compose_matrix(op: Compose) -> Inexact[Tensor, "out in"]:
    # Flattened tensors do not see a reshape.
    if isinstance(op.outer, Reshape):
        return _materialize(op.inner)
    return _materialize(op.outer) if isinstance(op.inner, Reshape) else _by_images(op)


@_materialize.register(Conv)
def _conv_matrix(op: Conv) -> Inexact[Tensor, "out in"]:
    # One window that covers the image once: the kernel is the matrix. A stride can leave one position with padding too.
    if one_position(op) and op.kernel == op.spatial == op.padded and op.groups == 1:
        return op.weight.flatten(1)
    return _by_images(op)


@_materialize.register(CircularConv)
def _circular_conv_matrix(op: CircularConv) -> Inexact[Tensor, "out in"]:
    # Its entries are those of the kernel; Fourier transforms would round them.
    return _by_images(op.conv)


def bare_matrix(op: LinearOperator) -> Inexact[Tensor, "out in"] | None:
    """The live matrix of an operator that is one but for the shapes of its inputs and outputs; else None."""
    match op:
        case Dense():
            return op.weight
        case Compose(Reshape(), inner) | Compose(inner, Reshape()):
            return bare_matrix(inner)
        case _:
            return None


def one_position(op: LinearOperator) -> bool:
    """Whether a convolution has one position on one side, and is a matrix like any other: no structure is left."""
    match op:
        case Conv():
            return all(n == 1 for n in op.out_shape[1:])
        case ConvTranspose():
            return all(n == 1 for n in op.in_shape[1:])
        case Compose(Reshape(), inner) | Compose(inner, Reshape()):
            return one_position(inner)
        case Adjoint(inner) | Scaled(_, inner) | StatedRounding(inner):
            return one_position(inner)
        case _:
            return False


def _images(op: LinearOperator) -> Inexact[Tensor, "in out"]:
    """The images of the unit vectors, one in each row."""
    chunk = max(1, _CHUNK_ENTRIES // max(op.in_size, op.out_size, 1))
    rows: list[Tensor] = []
    for start in range(0, op.in_size, chunk):
        count = min(chunk, op.in_size - start)
        units = torch.zeros(count, op.in_size, dtype=op.dtype, device=op.device)
        units[torch.arange(count), torch.arange(start, start + count)] = 1
        rows.append(op.apply(units.reshape(count, *op.in_shape)).reshape(count, op.out_size))
    return torch.cat(rows)


def signature(op: LinearOperator) -> Hashable:
    """A key that operators must share to be stacked: types, tensor shapes, dtypes, devices, every other field."""
    return (type(op), *(_signature_of(getattr(op, f.name)) for f in fields(op)))  # pyright: ignore[reportArgumentType]


def stack(ops: Sequence[LinearOperator]) -> LinearOperator:
    """diag(A_1, ..., A_m) : (m, *in_shape) -> (m, *out_shape) for operators of one `signature`.

    Matrices become one batched product and convolutions one grouped convolution; what has no such form is a loop.
    The weights are joined once, and gradients reach each of them.
    """
    if not ops:
        raise ArgumentError("stack needs at least one operator, got none.")
    kinds = {signature(op) for op in ops}
    if len(kinds) > 1:
        raise ArgumentError(
            f"stack needs operators of one signature, got {len(kinds)} different ones; group them by signature."
        )
    return _stack(*ops)


@singledispatch
def _stack(first: LinearOperator, *rest: LinearOperator) -> LinearOperator:
    return BlockDiagonal((first, *rest))


@_stack.register(Dense)
def _stack_dense(first: Dense, *rest: Dense) -> LinearOperator:
    return DenseStack(torch.stack([op.weight for op in (first, *rest)]))


@_stack.register(CircularConv)
@_stack.register(Conv)
@_stack.register(ConvTranspose)
def _stack_conv(first: Convolution, *rest: Convolution) -> LinearOperator:
    ops = (first, *rest)
    joined = replace(first, weight=torch.cat([op.weight for op in ops]), groups=first.groups * len(ops))
    split = Reshape(joined.out_shape, (len(ops), *first.out_shape))
    return split @ joined @ Reshape((len(ops), *first.in_shape), joined.in_shape)


@_stack.register(Diagonal)
def _stack_diagonal(first: Diagonal, *rest: Diagonal) -> LinearOperator:
    ops = (first, *rest)
    scale = torch.stack([op.scale.expand(op.shape) for op in ops])
    return Diagonal(scale, (len(ops), *first.shape))


@_stack.register(BatchNorm)
def _stack_batch_norm(first: BatchNorm, *rest: BatchNorm) -> LinearOperator:
    return stack([op.diagonal for op in (first, *rest)])


@_stack.register(Permute)
def _stack_permute(first: Permute, *rest: Permute) -> LinearOperator:
    return Permute((len(rest) + 1, *first.shape), (0, *(axis + 1 for axis in first.order)))


@_stack.register(Reshape)
def _stack_reshape(first: Reshape, *rest: Reshape) -> LinearOperator:
    count = len(rest) + 1
    return Reshape((count, *first.source), (count, *first.target))


@_stack.register(Adjoint)
@_stack.register(Compose)
@_stack.register(StatedRounding)
@_stack.register(Sum)
@_stack.register(Sweep)
def _stack_composites(*ops: LinearOperator) -> LinearOperator:
    return with_parts(ops[0], [stack(parts) for parts in zip(*map(parts_of, ops), strict=True)])


@_stack.register(Scaled)
def _stack_scaled(first: Scaled, *rest: Scaled) -> LinearOperator:
    ops = (first, *rest)
    # As an array the factor would promote; as the number it was, it follows the operator it scales.
    factors = torch.stack([op.factor for op in ops]).to(first.device, first.dtype)
    shape = (len(ops), *first.out_shape)
    return Diagonal(factors.reshape(-1, *(1,) * (len(shape) - 1)), shape) @ stack([op.inner for op in ops])


def _signature_of(value: object) -> Hashable:
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype, value.device)
    if isinstance(value, LinearOperator):
        return signature(value)
    if isinstance(value, tuple):
        return tuple(_signature_of(v) for v in value)
    if isinstance(value, Hashable):
        return value
    raise ArgumentError(f"A field of an operator must be hashable to be compared, got {type(value).__name__}.")
