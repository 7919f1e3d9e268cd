"""Small layers that only conversions need."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ShapeError
from lipkit.nn.activations._channels import per_channel, same_channels
from lipkit.nn.core.known_constants import SAFE, Contraction


@final
class ChannelScale(Contraction):
    """x times one learnt factor for each channel, clipped to [-1, 1], plus a learnt bias. Guarantee: constant 1.

    Args:
        start: Factor of each channel at the start.
        axis: Axis of the channels.
        bias: Bias of each channel at the start; none if None.
    """

    def __init__(self, start: Tensor, axis: int = 1, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """The scaled and shifted channels."""
        same_channels(x, self.axis, self.weight.shape[0], "ChannelScale")
        scaled = x * per_channel(self.weight.clamp(-1, 1).to(x.dtype), x, self.axis)
        return scaled if self.bias is None else scaled + per_channel(self.bias.to(x.dtype), x, self.axis)


@final
class ScaledMean(Contraction):
    """The mean over axes times sqrt(number of entries): constant 1, whatever the size."""

    def __init__(self, dim: int | tuple[int, ...], keepdim: bool = False) -> None:
        super().__init__()
        self.dim = (dim,) if isinstance(dim, int) else tuple(dim)
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        """The sum over sqrt(entries)."""
        if 0 in {axis % x.ndim for axis in self.dim}:
            raise ShapeError(f"The axes {self.dim} of an input of shape {tuple(x.shape)} contain the batch.")
        entries = math.prod([x.shape[axis] for axis in self.dim])
        return x.mean(self.dim, keepdim=self.keepdim) * (math.sqrt(entries) * SAFE)


@final
class Shift(Contraction):
    """x + a learnt or fixed tensor that is not larger than x: a translation. Guarantee: constant 1."""

    def __init__(self, offset: Tensor) -> None:
        super().__init__()
        if isinstance(offset, nn.Parameter):
            self.offset = nn.Parameter(offset.detach().clone(), requires_grad=offset.requires_grad)
        else:
            self.register_buffer("offset", offset.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """The sum, if it has the shape of x: otherwise entries of x would be repeated."""
        found = x + self.offset.to(x.dtype)
        if found.shape != x.shape:
            raise ShapeError(
                f"Adding a tensor of shape {tuple(self.offset.shape)} repeats an input of shape {tuple(x.shape)}, "
                "which enlarges its norm; give the tensor the shape of one sample."
            )
        return found


def split_largest(scale: Tensor) -> tuple[Tensor, float]:
    """(scale / largest, largest), with the largest absolute factor of all channels."""
    largest = float(scale.detach().abs().max()) if scale.numel() else 0.0
    return (scale.detach() / largest, largest) if largest > 0 else (torch.ones_like(scale), 1.0)
