"""Pairs of channels, reflected where they lie on one side of a learnt line."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations._channels import per_channel, same_channels
from lipkit.nn.core.known_constants import Contraction


@final
class HouseholderActivation(Contraction):
    """Folds the plane of each pair of channels along a learnt line, `order` times (1 or 2, each with its own angle).

        z -> z if v . z > 0, otherwise z - 2 (v . z) v,    v = (sin(t/2), -cos(t/2)),

    with channels i and i + channels/2 as the pair z, and one angle t for each pair and fold. It is written as
    z - c min(v . z, 0) v, which is continuous whatever v and c are stored, and c |v|^2 <= 2 is rounded down, so the
    Jacobian I - c v v' is orthogonal up to rounding and its norm at most 1. t = pi/2 is MaxMin; that is the start.

    Guarantee: constant 1. Order 2 is the composition of two folds: its creases are mirror images of each other, a
    family with one angle less than the order 2 of the authors, whose four rotated pieces do not meet exactly once their
    entries are rounded. Limit: an even number of channels. Cost: about five products an entry and fold.
    Reference: Singla, Singla and Feizi 2022 (order 1); the composition is ours.

    Args:
        channels: Number of channels, even.
        order: Number of folds, 1 or 2.
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(
        self,
        channels: int,
        order: int = 1,
        axis: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if channels < 2 or channels % 2:
            raise ArgumentError(
                f"HouseholderActivation folds pairs of channels, so it needs an even number, got {channels}."
            )
        if order not in (1, 2):
            raise ArgumentError(f"HouseholderActivation.order must be 1 or 2, got {order}.")
        self.channels = channels
        self.order = order
        self.axis = axis
        # The second fold starts across the first: a crease that cuts the image of the first fold in two.
        start = torch.tensor([math.pi / 2, 3 * math.pi / 2][:order], device=device, dtype=dtype)
        self.angles = nn.Parameter(start[:, None].repeat(1, channels // 2))

    def forward(self, x: Tensor) -> Tensor:
        """The folded pairs, in the places of their channels."""
        same_channels(x, self.axis, self.channels, "HouseholderActivation")
        a, b = x.chunk(2, self.axis)
        for angle in self.angles:
            half = angle.to(torch.float64) / 2
            p, q = half.sin().to(x.dtype), -half.cos().to(x.dtype)
            square = p.to(torch.float64).square() + q.to(torch.float64).square()
            # Rounding to nearest cannot undo a whole epsilon.
            c = (2 * (1 - torch.finfo(x.dtype).eps) / square).to(x.dtype)
            p, q, c = (per_channel(value, x, self.axis) for value in (p, q, c))
            below = c * (p * a + q * b).clamp(max=0)
            a, b = a - below * p, b - below * q
        return torch.cat((a, b), self.axis)
