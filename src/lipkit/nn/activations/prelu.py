"""The parametric rectifier with a slope that cannot leave [-1, 1]."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations._channels import per_channel, same_channels
from lipkit.nn.core.known_constants import Contraction, EveryNorm


@final
class PReLU(EveryNorm, Contraction):
    """max(x, 0) + a min(x, 0) with learnt slopes a = sin(free), one for all channels or one for each.

    sin reaches both ends, -1 (absolute value) and 1 (identity), and its derivative never stays zero, as a clipped
    slope's would once it is outside. Guarantee: constant 1 (exact: the slope on the right is 1).

    Args:
        channels: Number of slopes: 1 for all channels, or one for each.
        start: Slope on the left at the start, in [-1, 1].
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(
        self,
        channels: int = 1,
        start: float = 0.25,
        axis: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not -1 <= start <= 1:
            raise ArgumentError(f"PReLU.start is a slope in [-1, 1], got {start}.")
        self.channels = channels
        self.axis = axis
        self.raw = nn.Parameter(torch.full((channels,), math.asin(start), device=device, dtype=dtype))

    @property
    def slopes(self) -> Tensor:
        """The slopes on the left, one for each channel."""
        return slopes_from(self.raw)

    def forward(self, x: Tensor) -> Tensor:
        """max(x, 0) + a min(x, 0)."""
        slopes = self.slopes.to(x.dtype)
        left = slopes
        if slopes.shape[0] > 1:
            # One channel would be repeated for each slope.
            same_channels(x, self.axis, slopes.shape[0], "PReLU")
            left = per_channel(slopes, x, self.axis)
        return torch.where(x > 0, x, left * x)


def slopes_from(raw: Tensor) -> Tensor:
    """sin(raw), at most 1 whatever the last digit of torch's sine is."""
    return torch.sin(raw).clamp(-1, 1)
