"""The shift net: orthogonal mixing of channels and moves by one pixel, isometries up to the logits."""

from collections.abc import Sequence

from torch import nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations.sorting import ChannelPairing, MaxMin
from lipkit.nn.layers.conv import Conv2d
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.layers.shift import ShiftBlock
from lipkit.nn.layers.space_to_depth import SpaceToDepth
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.networks._images import check_counts, check_image, dense_end


def shift_net(
    in_shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = (64, 128),
    depth: Sequence[int] = (4, 8),
    width: int = 256,
    dense: int = 2,
    K: float = 1.0,
) -> Sequential:
    """Stages of `ShiftBlock`: each halves the image by moving 2 x 2 pixels into channels, and mixes them orthogonally.

    Every layer before the logits keeps distances wherever it does not narrow, at any depth, with no convolution.
    recipes/cifar10_shift.py trains a relative of it whose weights an optimizer keeps orthogonal.

    Guarantee: constant K in l2, by construction.

    Args:
        in_shape: (channels, height, width) of one image; 2^stages divides both sides.
        classes: Number of logits.
        channels: Channels of each stage, multiples of 8.
        depth: Number of blocks of each stage.
        width: Features of the dense layers, even.
        dense: Number of dense layers before the logits.
        K: The constant of the network.
    """
    whole = isinstance(channels, Sequence) and isinstance(depth, Sequence)
    if not whole or len(channels) != len(depth) or not channels:
        raise ArgumentError(
            f"channels and depth of shift_net have one number for each stage, such as (64, 128) and (4, 8), got "
            f"{channels} and {depth}."
        )
    stages = len(channels)
    before, height, side = check_image(in_shape, 2**stages, "shift_net")
    check_counts("shift_net", classes=classes, channels=min(channels), depth=min(depth))
    end = dense_end((channels[-1], height >> stages, side >> stages), width, dense, classes)
    parts: list[nn.Module] = []
    for wide, count in zip(channels, depth, strict=True):
        parts += [SpaceToDepth(2), Conv2d(4 * before, wide, 1, method=Bjorck()), MaxMin(ChannelPairing.HALVES)]
        parts += [ShiftBlock(wide) for _ in range(count)]
        before = wide
    return Sequential(*parts, *end, K=K)
