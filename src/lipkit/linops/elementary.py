"""Elementary operators: a matrix, a stack of matrices, a diagonal, and moves of entries (reshape, permute, gather)."""

import math
from dataclasses import dataclass
from types import EllipsisType
from typing import final

import torch
from jaxtyping import Inexact, Int64
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape, promote
from lipkit.linops.padding import Padding, Sides, check_sides, positions

Key = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]


@final
@dataclass(frozen=True, eq=False)
class Dense(LinearOperator):
    """x -> weight x for a real or complex matrix; the adjoint is the conjugate transpose. Cost: out * in."""

    weight: Inexact[Tensor, "out in"]

    def __post_init__(self) -> None:
        if self.weight.ndim != 2:
            raise ShapeError(f"Dense needs a matrix, got a weight of shape {tuple(self.weight.shape)}.")
        if not (self.weight.is_floating_point() or self.weight.is_complex()):
            raise ArgumentError(f"Dense needs floating-point weights, got {self.weight.dtype}; convert them first.")

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[1],)

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0],)

    def _apply(self, x: Tensor) -> Tensor:
        weight, x = promote(self.weight, x)
        return x @ weight.mT

    def _adjoint(self, y: Tensor) -> Tensor:
        weight, y = promote(self.weight, y)
        return y @ weight.conj()


@final
@dataclass(frozen=True, eq=False)
class DenseStack(LinearOperator):
    """diag(W_1, ..., W_m) for matrices of one shape, (m, in) -> (m, out), by one batched product."""

    weight: Inexact[Tensor, "m out in"]

    def __post_init__(self) -> None:
        if self.weight.ndim != 3:
            raise ShapeError(f"DenseStack needs a stack of matrices, got a weight of shape {tuple(self.weight.shape)}.")

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[0], self.weight.shape[2])

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0], self.weight.shape[1])

    def _apply(self, x: Tensor) -> Tensor:
        weight, x = promote(self.weight, x)
        return (x.transpose(0, 1) @ weight.mT).transpose(0, 1)

    def _adjoint(self, y: Tensor) -> Tensor:
        weight, y = promote(self.weight, y)
        return (y.transpose(0, 1) @ weight.conj()).transpose(0, 1)


@final
@dataclass(frozen=True, eq=False)
class Diagonal(LinearOperator):
    """x -> scale x entrywise, on tensors of `shape`, to which `scale` broadcasts. Cost: one product per entry."""

    scale: Inexact[Tensor, "..."]
    shape: Shape

    def __post_init__(self) -> None:
        scale = tuple(self.scale.shape)
        # torch.broadcast_shapes says the same, and takes a tenth of the time of many bounds.
        offset = len(self.shape) - len(scale)
        fits = offset >= 0 and all(n in (1, self.shape[offset + i]) for i, n in enumerate(scale))
        if not fits:
            raise ShapeError(f"The scale of a Diagonal must broadcast to {self.shape}, got {scale}.")

    @property
    def in_shape(self) -> Shape:
        return self.shape

    @property
    def out_shape(self) -> Shape:
        return self.shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.scale * x

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.scale.conj() * y


@final
@dataclass(frozen=True, eq=False)
class Reshape(LinearOperator):
    """The same entries in another shape, `source` -> `target`: an isometry. Cost: none."""

    source: Shape
    target: Shape

    def __post_init__(self) -> None:
        if math.prod(self.source) != math.prod(self.target):
            raise ShapeError(f"Cannot reshape {self.source} to {self.target}: the numbers of entries differ.")

    @property
    def in_shape(self) -> Shape:
        return self.source

    @property
    def out_shape(self) -> Shape:
        return self.target

    def _apply(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.target)

    def _adjoint(self, y: Tensor) -> Tensor:
        return y.reshape(y.shape[0], *self.source)


@final
@dataclass(frozen=True, eq=False)
class Permute(LinearOperator):
    """The axes of `shape` in another order: axis k of the output is axis order[k] of the input. An isometry."""

    shape: Shape
    order: Shape

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.shape))):
            raise ArgumentError(
                f"The order of Permute must list the axes 0..{len(self.shape) - 1} once each, got {self.order}."
            )

    @property
    def in_shape(self) -> Shape:
        return self.shape

    @property
    def out_shape(self) -> Shape:
        return tuple(self.shape[axis] for axis in self.order)

    def _apply(self, x: Tensor) -> Tensor:
        return x.permute(0, *(axis + 1 for axis in self.order))

    def _adjoint(self, y: Tensor) -> Tensor:
        return y.permute(0, *(self.order.index(axis) + 1 for axis in range(len(self.order))))


@final
@dataclass(frozen=True, eq=False)
class Index(LinearOperator):
    """Gather: y[i] = x.flatten()[index[i]], or 0 where index[i] is -1; the adjoint adds every entry back to its source.

    `index` has the shape of the output and holds flat positions in a tensor of shape `source`.
    """

    index: Int64[Tensor, "..."]
    source: Shape

    def __post_init__(self) -> None:
        if self.index.dtype != torch.int64:
            raise ArgumentError(f"The positions of Index must be int64, got {self.index.dtype}; convert with .long().")
        size = math.prod(self.source)
        if self.index.numel() and (self.index.min() < -1 or self.index.max() >= size):
            found = f"{int(self.index.min())}..{int(self.index.max())}"
            raise ArgumentError(f"The positions of Index in {self.source} must lie in -1..{size - 1}, got {found}.")

    @property
    def in_shape(self) -> Shape:
        return self.source

    @property
    def out_shape(self) -> Shape:
        return tuple(self.index.shape)

    def _apply(self, x: Tensor) -> Tensor:
        if not self.in_size:
            # All positions are -1, and torch gathers nothing from nothing.
            return x.new_zeros((x.shape[0], *self.out_shape))
        flat = x.reshape(x.shape[0], self.in_size)
        at = self.index.flatten().to(x.device)
        # A gather then a mask, not a product with 0 and 1: an infinite entry that is not selected must not become NaN.
        return torch.where(at >= 0, flat[:, at.clamp(min=0)], 0).reshape(x.shape[0], *self.out_shape)

    def _adjoint(self, y: Tensor) -> Tensor:
        if not self.in_size:
            return y.new_zeros((y.shape[0], *self.in_shape))
        at = self.index.flatten().to(y.device)
        flat = torch.where(at >= 0, y.reshape(y.shape[0], self.out_size), 0)
        target = y.new_zeros((y.shape[0], self.in_size))
        return target.index_add(1, at.clamp(min=0), flat).reshape(y.shape[0], *self.in_shape)


def flat_positions(shape: Shape) -> Int64[Tensor, "..."]:
    """The flat position of every entry of a tensor of `shape`."""
    return torch.arange(math.prod(shape)).reshape(shape)


def select(shape: Shape, key: Key) -> Index:
    """x -> x[key], for integers, slices and an ellipsis."""
    try:
        return Index(flat_positions(shape)[key].clone(), shape)
    except IndexError as error:
        raise ShapeError(f"Cannot select {key} from shape {shape}: {error}.") from error


def flip(shape: Shape, axes: Shape) -> Index:
    """x -> x with the given axes reversed."""
    try:
        return Index(flat_positions(shape).flip(axes), shape)
    except IndexError as error:
        raise ShapeError(f"Cannot flip the axes {axes} of shape {shape}: {error}.") from error


def pad(shape: Shape, padding: Sides, mode: Padding = Padding.ZEROS) -> Index:
    """Pad the last axes of `shape`, one pair (left, right) for each, as torch.nn.functional.pad does.

    A negative width crops, in the mode of zeros only.
    """
    if len(padding) > len(shape):
        raise ShapeError(f"padding has {len(padding)} pairs, but the shape {shape} has {len(shape)} axes.")
    kept, axes = shape[: len(shape) - len(padding)], shape[len(shape) - len(padding) :]
    if mode is not Padding.ZEROS:
        check_sides(axes, padding, mode)
    if any(n + left + right < 0 for n, (left, right) in zip(axes, padding, strict=True)):
        raise ShapeError(f"The padding {padding} crops more than the last axes of {shape} have.")
    index = flat_positions(shape)
    for axis, (size, pair) in enumerate(zip(axes, padding, strict=True), start=len(kept)):
        at = positions(size, pair, mode)
        outside = (at < 0).reshape(-1, *(1,) * (len(shape) - 1 - axis))
        index = torch.where(outside, -1, index.index_select(axis, at.clamp(min=0)))
    return Index(index, shape)
