"""An operator as a dense matrix."""

from functools import singledispatch

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import TooLargeError
from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled
from lipkit.linops.composites import StatedRounding
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.dense import Dense
from lipkit.linops.index import Reshape

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
def _dense(op: Dense) -> Inexact[Tensor, "out in"]:
    return op.weight


@_materialize.register(Adjoint)
def _adjoint(op: Adjoint) -> Inexact[Tensor, "out in"]:
    return _materialize(op.inner).mH


@_materialize.register(StatedRounding)
def _stated(op: StatedRounding) -> Inexact[Tensor, "out in"]:
    return _materialize(op.inner)


@_materialize.register(Compose)
def _compose(op: Compose) -> Inexact[Tensor, "out in"]:
    # Flattened tensors do not see a reshape.
    if isinstance(op.outer, Reshape):
        return _materialize(op.inner)
    return _materialize(op.outer) if isinstance(op.inner, Reshape) else _by_images(op)


@_materialize.register(Conv)
def _conv(op: Conv) -> Inexact[Tensor, "out in"]:
    # One window that covers the image once: the kernel is the matrix. A stride can leave one position with padding too.
    if one_position(op) and op.kernel == op.spatial == op.padded and op.groups == 1:
        return op.weight.flatten(1)
    return _by_images(op)


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
