"""The rectifier of absolute values, for complex numbers."""

from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor, nn

from lipkit.nn.activations._channels import per_channel, same_channels
from lipkit.nn.core.bounded_length import as_logarithm, positive_number
from lipkit.nn.core.known_constants import Contraction


@final
class ModReLU(Contraction):
    """z max(0, 1 - b / |z|): the absolute value shortened by a learnt b > 0, the phase kept; soft thresholds if real.

    It is the z' that minimises |z' - z|^2 / 2 + b |z'|, and such maps have constant 1. With b < 0, which the published
    form relu(|z| + bias) z / |z| allows as a positive bias, it jumps at zero: numbers near it go to |b| with any phase.

    Guarantee: constant 1 in l2, of real and of complex numbers. Cost: one pass.
    Reference: Arjovsky, Shah and Bengio 2016, with biases of both signs.

    Args:
        channels: Number of thresholds b: 1 for all channels, or one for each.
        start: b at the start, positive.
        axis: Axis of the channels; 1 after a batch axis.
        dtype: Type of the thresholds, which are real: the parts of a complex type.
    """

    def __init__(
        self,
        channels: int = 1,
        start: float = 0.1,
        axis: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        logarithm = as_logarithm(start, "ModReLU.start")
        self.channels = channels
        self.axis = axis
        real = None if dtype is None else dtype.to_real()
        self.log_threshold = nn.Parameter(torch.full((channels,), logarithm, device=device, dtype=real))

    @property
    def covers_complex(self) -> bool:
        """True."""
        return True

    def forward(self, z: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """z max(0, 1 - b / |z|)."""
        length = z.detach().abs()
        # Converted to a complex type, thresholds are still real.
        threshold = positive_number(self.log_threshold.real, length)
        if self.channels > 1:
            # One channel would be repeated for each threshold.
            same_channels(z, self.axis, self.channels, "ModReLU")
            threshold = per_channel(threshold, z, self.axis)
        # Numbers up to the threshold become zero. They are zeros from here on, because torch's derivative of the
        # absolute value of a subnormal complex number is NaN.
        size = torch.where(length > threshold, z, 0).abs()
        return z * (1 - threshold / torch.maximum(size, threshold))
