"""The surroundings of an image: the padding modes of torch, and padding as a linear map."""

import enum
from typing import assert_never

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import Shape

Sides = tuple[tuple[int, int], ...]


class Padding(enum.Enum):
    """The padding modes; the values are the names torch.nn gives them."""

    ZEROS = "zeros"
    CIRCULAR = "circular"
    REFLECT = "reflect"
    REPLICATE = "replicate"


def check_sides(spatial: Shape, sides: Sides, mode: Padding) -> None:
    """Refuse what torch refuses: negative widths, reflection by a whole axis, more than one turn around a circle."""
    if len(sides) != len(spatial):
        raise ShapeError(f"padding needs {len(spatial)} pairs (left, right), one for each spatial axis, got {sides}.")
    for size, (left, right) in zip(spatial, sides, strict=True):
        if min(left, right) < 0:
            raise ArgumentError(f"padding must not be negative, got {(left, right)}; crop with lipkit.linops.select.")
        if mode is Padding.REFLECT and max(left, right) >= size:
            raise ShapeError(
                f"Reflect padding must be smaller than the axis, got {(left, right)} on length {size}; "
                "pad less or use Padding.REPLICATE."
            )
        if mode is Padding.CIRCULAR and max(left, right) > size:
            raise ShapeError(
                f"Circular padding must be at most the axis, got {(left, right)} on length {size}; "
                "pad less or pad twice."
            )


def padded_shape(spatial: Shape, sides: Sides) -> Shape:
    """The spatial shape after padding."""
    return tuple(n + left + right for n, (left, right) in zip(spatial, sides, strict=True))


def positions(size: int, sides: tuple[int, int], mode: Padding) -> Int64[Tensor, "padded"]:
    """Which entry of the axis each entry of the padded axis copies; -1 for a zero."""
    at = torch.arange(-sides[0], size + sides[1])
    match mode:
        case Padding.ZEROS:
            return torch.where((at >= 0) & (at < size), at, -1)
        case Padding.CIRCULAR:
            return at % size
        case Padding.REPLICATE:
            return at.clamp(0, size - 1)
        case Padding.REFLECT:
            return (size - 1) - ((size - 1) - at.abs()).abs()
        case _:
            assert_never(mode)


def copies(size: int, sides: tuple[int, int], mode: Padding) -> int:
    """The most often one entry of the axis appears in the padded axis."""
    at = positions(size, sides, mode)
    return int(at[at >= 0].bincount().max())


def pad(x: Tensor, sides: Sides, mode: Padding) -> Tensor:
    """Pad the trailing axes of x, one pair (left, right) for each."""
    if not any(map(any, sides)):
        return x
    if mode is Padding.ZEROS:
        return functional.pad(x, [width for pair in reversed(sides) for width in pair])
    for axis, pair in enumerate(sides, start=x.ndim - len(sides)):
        if any(pair):
            x = x.index_select(axis, positions(x.shape[axis], pair, mode).to(x.device))
    return x


def pad_adjoint(y: Tensor, sides: Sides, mode: Padding) -> Tensor:
    """The transpose of `pad`: every copy is added back to the entry it was copied from; zeros are cropped."""
    for axis, (left, right) in enumerate(sides, start=y.ndim - len(sides)):
        size = y.shape[axis] - left - right
        if mode is Padding.ZEROS:
            y = y.narrow(axis, left, size)
        elif left or right:
            target = y.new_zeros((*y.shape[:axis], size, *y.shape[axis + 1 :]))
            y = target.index_add(axis, positions(size, (left, right), mode).to(y.device), y)
    return y
