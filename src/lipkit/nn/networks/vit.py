"""A vision transformer of constant one: patches that attend to each other by distances."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.nn.activations.sorting import MaxMin
from lipkit.nn.attention.l2_attention import L2Attention
from lipkit.nn.combinators.residual import ConvexResidual
from lipkit.nn.layers.conv import Conv2d
from lipkit.nn.layers.linear import Linear
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.layers.space_to_depth import SpaceToDepth
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.networks._images import check_counts, check_image, check_pairs, dense_end

# Standard deviation of the positions at the start, as in Dosovitskiy et al.
_SPREAD = 0.02


@final
class PlacedTokens(nn.Module):
    """The pixels of an image as a sequence of tokens, plus a learnt vector for each place: an isometry."""

    def __init__(self, channels: int, tokens: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.empty(tokens, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the positions anew, as the constructor does."""
        nn.init.trunc_normal_(self.position, std=_SPREAD)

    @property
    def gain(self) -> float:
        """1: entries move, and a vector is added that does not depend on the input."""
        return 1.0

    def forward(
        self, image: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch {self.position.shape[0]} channels"]:
        """Tokens in the order of rows; the other axis holds their channels."""
        return image.flatten(2).mT + self.position


def vit(
    in_shape: Sequence[int],
    classes: int,
    *,
    patch: int = 4,
    channels: int = 64,
    heads: int = 4,
    depth: int = 4,
    width: int = 256,
    dense: int = 1,
    K: float = 1.0,
) -> Sequential:
    """Patches as tokens with learnt positions, mixed by `L2Attention` and by dense layers of single tokens in turn.

    Each half of a block is (1 - a) x + a f(x) with a learnt share a; a sum x + f(x) would have constant 2. f is
    attention by distances, or two orthogonal layers with MaxMin between them. Nothing is normalised: layer
    normalisation has no constant on the whole space. The end is dense over all tokens, not a class token, which would
    forget the others.

    Attention is divided by its constant, 9.7 for 16 tokens and 19.3 for 64, so large patches keep more of the signal.

    Guarantee: constant K in l2, by construction. References: Dosovitskiy et al. 2021 for the network, Kim et al. 2021
    for attention by distances; this form is ours.

    Args:
        in_shape: (channels, height, width) of one image; `patch` divides both sides.
        classes: Number of logits.
        patch: Side of a patch.
        channels: Channels of each token, even; `heads` divides them.
        heads: Number of heads of attention.
        depth: Number of blocks.
        width: Features of the dense layers, even.
        dense: Number of dense layers before the logits.
        K: The constant of the network.
    """
    check_counts("vit", classes=classes, patch=patch, channels=channels, heads=heads, depth=depth)
    colours, height, side = check_image(in_shape, patch, "vit")
    check_pairs("vit", channels=channels)
    tokens = (height // patch) * (side // patch)
    end = dense_end((tokens, channels), width, dense, classes)
    parts: list[nn.Module] = [SpaceToDepth(patch), Conv2d(colours * patch**2, channels, 1, method=Bjorck())]
    parts += [PlacedTokens(channels, tokens)]
    for _ in range(depth):
        within = Sequential(Linear(channels, channels), MaxMin(axis=-1), Linear(channels, channels))
        parts += [ConvexResidual(L2Attention(channels, heads, tokens=tokens)), ConvexResidual(within)]
    return Sequential(*parts, *end, K=K)
