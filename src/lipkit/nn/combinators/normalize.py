"""Normalisation of the input as a layer whose constant counts."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.activations._channels import per_channel, same_channels
from lipkit.nn.core.known_constants import EveryNorm
from lipkit.rounding.slacks import ROUNDINGS_8


@final
class Normalize(EveryNorm):
    """(x - mean) / std for each channel: constant 1 / min(std), about 4 for the usual images in [0, 1].

    A certificate for a model behind such a transform holds in the units of the transformed images; with the transform
    as a layer it holds in those of the user's. mean and std have one entry for each channel, or one for all. They
    belong to the architecture and are no state: casting or loading the model does not change them.

    Args:
        mean: Mean of each channel, or one for all.
        std: Deviation of each channel, or one for all.
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], axis: int = 1) -> None:
        super().__init__()
        if len(mean) != len(std) or not std or not all(0 < s < math.inf for s in std):
            raise ArgumentError(f"Normalize needs as many means as deviations, all > 0, got {mean} and {std}.")
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.axis = axis

    @property
    def gain(self) -> float:
        """1 / min(std), rounded up."""
        return (1 + ROUNDINGS_8) / min(self.std)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        if not x.is_floating_point():
            raise ArgumentError(
                f"Normalize takes floating-point numbers, got {x.dtype}; convert the input, for example by x.float()."
            )
        mean = torch.tensor(self.mean, dtype=x.dtype, device=x.device)
        # Rounding to nearest cannot undo a whole epsilon.
        down = 1 - torch.finfo(x.dtype).eps
        factor = torch.tensor([down / s for s in self.std], dtype=x.dtype, device=x.device)
        if len(self.mean) > 1:
            same_channels(x, self.axis, len(self.mean), "Normalize")
            mean, factor = per_channel(mean, x, self.axis), per_channel(factor, x, self.axis)
        return (x - mean) * factor
