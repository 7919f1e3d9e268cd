"""Many operators of one geometry as one block-diagonal operator, so that their norms cost one call."""

from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from functools import singledispatch

import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Sum
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.block import BlockDiagonal
from lipkit.linops.composites import StatedRounding, parts_of, with_parts
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.dense import Dense, DenseStack, Diagonal
from lipkit.linops.index import Permute, Reshape
from lipkit.linops.sweep import Sweep


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
def _dense(first: Dense, *rest: Dense) -> LinearOperator:
    return DenseStack(torch.stack([op.weight for op in (first, *rest)]))


@_stack.register(Conv)
@_stack.register(ConvTranspose)
def _conv(first: Conv | ConvTranspose, *rest: Conv | ConvTranspose) -> LinearOperator:
    ops = (first, *rest)
    joined = replace(first, weight=torch.cat([op.weight for op in ops]), groups=first.groups * len(ops))
    split = Reshape(joined.out_shape, (len(ops), *first.out_shape))
    return split @ joined @ Reshape((len(ops), *first.in_shape), joined.in_shape)


@_stack.register(Diagonal)
def _diagonal(first: Diagonal, *rest: Diagonal) -> LinearOperator:
    ops = (first, *rest)
    scale = torch.stack([op.scale.expand(op.shape) for op in ops])
    return Diagonal(scale, (len(ops), *first.shape))


@_stack.register(BatchNorm)
def _batch_norm(first: BatchNorm, *rest: BatchNorm) -> LinearOperator:
    return stack([op.diagonal for op in (first, *rest)])


@_stack.register(Permute)
def _permute(first: Permute, *rest: Permute) -> LinearOperator:
    return Permute((len(rest) + 1, *first.shape), (0, *(axis + 1 for axis in first.order)))


@_stack.register(Reshape)
def _reshape(first: Reshape, *rest: Reshape) -> LinearOperator:
    count = len(rest) + 1
    return Reshape((count, *first.source), (count, *first.target))


@_stack.register(Adjoint)
@_stack.register(Compose)
@_stack.register(StatedRounding)
@_stack.register(Sum)
@_stack.register(Sweep)
def _composite(*ops: LinearOperator) -> LinearOperator:
    return with_parts(ops[0], [stack(parts) for parts in zip(*map(parts_of, ops), strict=True)])


@_stack.register(Scaled)
def _scaled(first: Scaled, *rest: Scaled) -> LinearOperator:
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
