"""LipConvNet: a plain stack of orthogonal convolutions."""

from collections.abc import Sequence

from torch import nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations.sorting import MaxMin
from lipkit.nn.layers.conv import Conv2d
from lipkit.nn.layers.linear import Linear
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.convolutions.aoc import AOC
from lipkit.nn.networks._images import check_counts, check_image, check_pairs


def lip_conv_net(
    in_shape: Sequence[int],
    classes: int,
    *,
    channels: int = 32,
    depth: int = 5,
    stages: int = 5,
    K: float = 1.0,
    method: WeightMethod = AOC(),  # noqa: B008 - immutable
) -> Sequential:
    """`depth` convolutions 3 x 3 with MaxMin, in `stages` that each end with a stride of 2 and twice the channels.

    All borders are circular, so by an orthogonal method every layer keeps distances wherever it does not narrow. The
    network that the authors call LipConvNet-5n has depth 5n and 5 stages.

    Guarantee: constant K in l2, by construction. Reference: Singla and Feizi 2021.

    Args:
        in_shape: (channels, height, width) of one image; 2^stages divides both sides: 2 stages for 28 x 28.
        classes: Number of logits.
        channels: Channels of the first stage, even; each later stage has twice as many.
        depth: Number of convolutions, a multiple of `stages`.
        stages: How often the image is halved.
        K: The constant of the network.
        method: Makes the kernels; it must take circular padding and a stride of 2.
    """
    colours, height, side = check_image(in_shape, 2**stages, "lip_conv_net")
    check_counts("lip_conv_net", classes=classes, channels=channels, depth=depth, stages=stages)
    check_pairs("lip_conv_net", channels=channels)
    if depth % stages:
        raise ArgumentError(
            f"lip_conv_net has equally many convolutions in each stage, got depth={depth} for {stages} stages; take "
            f"depth={stages * max(1, depth // stages)}, or another number of stages."
        )
    parts: list[nn.Module] = []
    for stage in range(stages):
        wide = channels << stage
        for layer in range(depth // stages):
            last = layer == depth // stages - 1
            out, stride = (2 * wide, 2) if last else (wide, 1)
            parts += [Conv2d(colours, out, 3, stride, 1, padding_mode="circular", method=method), MaxMin()]
            colours = out
    features = colours * (height >> stages) * (side >> stages)
    return Sequential(*parts, nn.Flatten(), Linear(features, classes), K=K)
