"""An MLP mixer of constant one: patches mixed across positions and across channels in turn."""

from collections.abc import Sequence

from torch import nn

from lipkit.nn.activations.sorting import MaxMin
from lipkit.nn.combinators.residual import ConvexResidual
from lipkit.nn.layers.conv import Conv1d, Conv2d
from lipkit.nn.layers.linear import Linear
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.layers.space_to_depth import SpaceToDepth
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.networks._images import check_counts, check_image, check_pairs, dense_end


def mixer(
    in_shape: Sequence[int],
    classes: int,
    *,
    patch: int = 4,
    channels: int = 64,
    depth: int = 4,
    width: int = 256,
    dense: int = 1,
    K: float = 1.0,
) -> Sequential:
    """Patches as columns of a matrix, mixed by dense layers across patches and across channels in turn.

    Each half of a block is (1 - a) x + a f(x) with a learnt share a and f = two orthogonal layers with MaxMin between
    them; a sum x + f(x) would have constant 2. The end is dense, not a mean over patches, which would forget places.

    Guarantee: constant K in l2, by construction. Reference: Tolstikhin et al. 2021 for the mixer; this form is ours.

    Args:
        in_shape: (channels, height, width) of one image; `patch` divides both sides.
        classes: Number of logits.
        patch: Side of a patch.
        channels: Channels of each patch after its embedding, even.
        depth: Number of blocks.
        width: Features of the dense layers, even.
        dense: Number of dense layers before the logits.
        K: The constant of the network.
    """
    check_counts("mixer", classes=classes, patch=patch, channels=channels, depth=depth)
    check_pairs("mixer", channels=channels)
    colours, height, side = check_image(in_shape, patch, "mixer")
    count = (height // patch) * (side // patch)
    end = dense_end((channels, count), width, dense, classes)
    parts: list[nn.Module] = [SpaceToDepth(patch), Conv2d(colours * patch**2, channels, 1, method=Bjorck())]
    parts += [nn.Flatten(2)]
    for _ in range(depth):
        # MaxMin sorts pairs of channels in both halves: pairs of patches would tie places together.
        across = Sequential(Linear(count, count), MaxMin(), Linear(count, count))
        within = Sequential(
            Conv1d(channels, channels, 1, method=Bjorck()), MaxMin(), Conv1d(channels, channels, 1, method=Bjorck())
        )
        parts += [ConvexResidual(across), ConvexResidual(within)]
    return Sequential(*parts, *end, K=K)
