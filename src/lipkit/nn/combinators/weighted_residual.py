"""Residual connections with a learnt weight for each channel."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.activations._channels import per_channel, same_channels
from lipkit.nn.activations.prelu import slopes_from
from lipkit.nn.combinators.sums import same_shape
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import SAFE, Stated
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class WeightedResidual(Stated):
    """x + a f(x) with a learnt weight a_i = `most` sin(raw_i) for each channel, `start` at first.

    Guarantee: constant 1 + `most` gain f for all time, which is `gain`; with the weights of the moment,
    1 + max |a_i| gain f, which is declared. It is not divided by its constant: put it into `Sequential`. A branch whose
    constant is not known is refused. Cost: one pass. Reference: Qi et al. 2023; 1 + max a, as it is printed, holds for
    a >= 0 and gain f <= 1 (docs/errata.md). The bound on a is ours.

    Args:
        branch: The module f, whose constant is known.
        channels: Number of weights: 1 for all channels, or one for each.
        start: Weight at the start, between -most and most.
        most: The largest |a_i|.
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(
        self, branch: nn.Module, channels: int = 1, start: float = 0.1, most: float = 1.0, axis: int = 1
    ) -> None:
        super().__init__()
        if not 0 < most < math.inf or not abs(start) <= most:
            raise ArgumentError(
                f"WeightedResidual needs a finite most > 0 and a start between -most and most, got most = {most} and "
                f"start = {start}."
            )
        if channels < 1:
            raise ArgumentError(f"WeightedResidual.channels must be at least 1, got {channels}.")
        self.branch = branch
        self.channels = channels
        self.most = most
        self.axis = axis
        _ = self.gain
        like = next(branch.parameters(), torch.empty(0))
        self.raw = nn.Parameter(torch.full((channels,), math.asin(start / most), device=like.device, dtype=like.dtype))

    @property
    def gain(self) -> float:
        """1 + most gain f, rounded up."""
        return (1 + self.most * gain_of(self.branch)) * (1 + ROUNDINGS_32)

    @property
    def weights(self) -> Tensor:
        """The weights at this moment, one for each channel."""
        return slopes_from(self.raw) * self.most

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """1 + max |a_i| gain f with the weights of this moment. Gradient: reaches the largest weight."""
        largest = slopes_from(self.raw).to(torch.float64).abs().amax() * self.most
        constant = (1 + largest * gain_of(self.branch)) * (1 + ROUNDINGS_32)
        return Bound.from_value(constant, Kind.UPPER, "weights of WeightedResidual")

    def forward(self, x: Tensor) -> Tensor:
        """x + a f(x)."""
        image = self.branch(x)
        same_shape((x, image))
        # At most 1 in every type, so that the factor alone decides the largest weight.
        share = slopes_from(self.raw).to(image.dtype)
        if self.channels > 1:
            same_channels(x, self.axis, self.channels, "WeightedResidual")
            share = per_channel(share, x, self.axis)
        return x + share * (image * (self.most * SAFE))
