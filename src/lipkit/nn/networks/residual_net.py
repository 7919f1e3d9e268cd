"""Residual networks of constant one by construction: CPL and SLL nets."""

import enum
from collections.abc import Sequence

from torch import nn

from lipkit.errors import ArgumentError
from lipkit.nn.layers.conv import Conv2d
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.layers.space_to_depth import SpaceToDepth
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.networks._images import check_counts, check_image, dense_end
from lipkit.nn.residual.cpl import CPLConv
from lipkit.nn.residual.sll import SLLConv


class ResidualBlock(enum.Enum):
    """The residual layer that a `residual_net` repeats."""

    CPL = "cpl"
    SLL = "sll"


def residual_net(
    in_shape: Sequence[int],
    classes: int,
    *,
    channels: int = 64,
    depth: int = 10,
    stages: int = 2,
    width: int = 256,
    dense: int = 2,
    block: ResidualBlock = ResidualBlock.SLL,
    K: float = 1.0,
) -> Sequential:
    """Residual layers x - W' c relu(W x + b) of constant 1, in stages that halve the image; then a dense end.

    Each stage begins with blocks of 2 x 2 pixels moved into channels and mixed to `channels` by an orthogonal matrix,
    which loses nothing that a strided convolution would keep.

    Guarantee: constant K in l2, by construction. References: Meunier et al. 2022 (CPL), Araujo et al. 2023 (SLL).

    Args:
        in_shape: (channels, height, width) of one image; 2^stages divides both sides.
        classes: Number of logits.
        channels: Channels of all stages.
        depth: Residual layers of each stage.
        stages: How often the image is halved.
        width: Features of the dense layers, even.
        dense: Number of dense layers before the logits.
        block: CPL or SLL.
        K: The constant of the network.
    """
    colours, height, side = check_image(in_shape, 2**stages, "residual_net")
    check_counts("residual_net", classes=classes, channels=channels, depth=depth, stages=stages)
    if not isinstance(block, ResidualBlock):
        raise ArgumentError(f"residual_net.block must be ResidualBlock.CPL or ResidualBlock.SLL, got {block!r}.")
    layer = {ResidualBlock.CPL: CPLConv, ResidualBlock.SLL: SLLConv}[block]
    end = dense_end((channels, height >> stages, side >> stages), width, dense, classes)
    parts: list[nn.Module] = []
    for _ in range(stages):
        parts += [SpaceToDepth(2), Conv2d(4 * colours, channels, 1, method=Bjorck())]
        parts += [layer(channels, 3) for _ in range(depth)]
        colours = channels
    return Sequential(*parts, *end, K=K)
