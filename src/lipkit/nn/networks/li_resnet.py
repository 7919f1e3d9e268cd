"""LiResNet: linear residual convolutions with MaxMin, and a dense end."""

from collections.abc import Sequence

from torch import nn

from lipkit.nn.activations.sorting import MaxMin
from lipkit.nn.layers.conv import Conv2d
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.methods.rko import RKO
from lipkit.nn.networks._images import check_counts, check_image, check_pairs, dense_end
from lipkit.nn.residual.linear_residual import LinearResidual


def li_resnet(
    in_shape: Sequence[int],
    classes: int,
    *,
    channels: int = 64,
    depth: int = 12,
    width: int = 256,
    dense: int = 4,
    K: float = 1.0,
) -> Sequential:
    """A stem of patches, `depth` blocks MaxMin((I + Q) x / b) with b >= ||I + Q||, patches again, and dense layers.

    The blocks are linear residual convolutions, so they can be the identity; the norm that divides them is certified at
    every step, where the authors count an estimate in the product of the network.

    Guarantee: constant K in l2, by construction. Reference: Hu et al. 2023.

    Args:
        in_shape: (channels, height, width) of one image; 4 divides both sides.
        classes: Number of logits.
        channels: Channels of the blocks, even.
        depth: Number of blocks.
        width: Features of the dense layers, even.
        dense: Number of dense layers before the logits.
        K: The constant of the network.
    """
    colours, height, side = check_image(in_shape, 4, "li_resnet")
    check_counts("li_resnet", classes=classes, channels=channels, depth=depth)
    check_pairs("li_resnet", channels=channels)
    end = dense_end((channels, height // 4, side // 4), width, dense, classes)
    parts: list[nn.Module] = [Conv2d(colours, channels, 2, 2, method=RKO()), MaxMin()]
    for _ in range(depth):
        parts += [Conv2d(channels, channels, 3, padding=1, method=LinearResidual()), MaxMin()]
    parts += [Conv2d(channels, channels, 2, 2, method=RKO()), MaxMin()]
    return Sequential(*parts, *end, K=K)
