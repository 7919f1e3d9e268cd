"""Arithmetic of sliding windows, one axis at a time, and the checks of the numbers that describe them."""

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import Shape


def check_axes(name: str, values: Shape, rank: int, least: int) -> None:
    """Refuse `values` that are not one integer >= `least` for each of `rank` axes."""
    if len(values) != rank:
        raise ShapeError(f"{name} needs {rank} numbers, one for each spatial axis, got {values}.")
    if any(v < least for v in values):
        raise ArgumentError(f"{name} must be at least {least} on every axis, got {values}.")


def check_rank(weight_shape: Shape) -> int:
    """The number of spatial axes of a convolution weight: 1, 2 or 3."""
    rank = len(weight_shape) - 2
    if rank not in (1, 2, 3):
        raise ShapeError(
            f"A convolution weight has 3, 4 or 5 axes (two of channels, the rest of space), got shape {weight_shape}."
        )
    if 0 in weight_shape:
        raise ShapeError(f"A convolution weight must not be empty, got shape {weight_shape}.")
    return rank


def check_groups(groups: int, channels: int, what: str) -> None:
    """Refuse `groups` that do not divide `channels`."""
    if groups < 1 or channels % groups:
        raise ArgumentError(f"groups must be positive and divide the {channels} {what} channels, got {groups}.")


def extent(kernel: int, dilation: int) -> int:
    """Length covered by a dilated kernel: dilation (kernel - 1) + 1."""
    return dilation * (kernel - 1) + 1


def windows(size: int, window: int, stride: int) -> int:
    """How many windows fit: floor((size - window) / stride) + 1."""
    return (size - window) // stride + 1


def check_fits(padded: Shape, extents: Shape) -> None:
    """Refuse a dilated kernel that is longer than the padded input."""
    if any(e > n for e, n in zip(extents, padded, strict=True)):
        raise ShapeError(
            f"The dilated kernel {extents} is larger than the padded input {padded}; pad more or use a smaller kernel."
        )
