"""Parts that networks for images share: the check of sizes, and the dense end."""

import math
from collections.abc import Sequence

from torch import nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations.sorting import MaxMin
from lipkit.nn.layers.linear import Linear

# Channels, height and width of one image.
ImageShape = tuple[int, int, int]


def check_image(in_shape: Sequence[int], divisor: int, network: str) -> ImageShape:
    """The shape of one image, refused unless it is (channels, height, width) with sides that `divisor` divides."""
    shape = tuple(in_shape) if isinstance(in_shape, Sequence) else ()
    if len(shape) != 3 or min(shape, default=0) < 1:
        raise ArgumentError(
            f"{network} takes the shape of one image, (channels, height, width) without batch axis, got "
            f"in_shape={in_shape}."
        )
    if any(side % divisor for side in shape[1:]):
        raise ArgumentError(
            f"{network} needs images with sides that {divisor} divides, got in_shape={shape}; pad the images with "
            "zeros (torch.nn.ZeroPad2d has constant 1) or crop them, or use fewer stages or smaller patches."
        )
    return shape[0], shape[1], shape[2]


def check_counts(network: str, **counts: int) -> None:
    """Refuse numbers of layers, channels or classes below one."""
    for name, value in counts.items():
        if value < 1:
            raise ArgumentError(f"{network} needs {name} of at least 1, got {value}.")


def check_pairs(network: str, **counts: int) -> None:
    """Refuse odd numbers of features, because MaxMin sorts pairs."""
    for name, value in counts.items():
        if value % 2:
            raise ArgumentError(f"{network} needs an even number of {name}, because MaxMin sorts pairs, got {value}.")


def dense_end(in_shape: Sequence[int], width: int, dense: int, classes: int) -> list[nn.Module]:
    """Flatten, `dense` layers of `width` features with MaxMin, and the layer of the logits."""
    check_counts("The dense end", width=width, classes=classes)
    if dense < 0:
        raise ArgumentError(f"dense is a number of layers, 0 or more, got {dense}.")
    check_pairs("The dense end", width=width)
    parts: list[nn.Module] = [nn.Flatten()]
    features = math.prod(in_shape)
    for _ in range(dense):
        parts += [Linear(features, width), MaxMin()]
        features = width
    return [*parts, Linear(features, classes)]
