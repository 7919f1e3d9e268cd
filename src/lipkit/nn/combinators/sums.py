"""Sums of several tensors that are no larger than their parts."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.core.known_constants import SAFE


@final
class ConvexSum(nn.Module):
    """sum_i w_i x_i with learnt weights w_i >= 0, sum w = 1: if the x_i are c-Lipschitz functions of one input, so is
    it.

    The weights are sigmoids, one step for each further part: y <- y + sigmoid(a_i) (x_i - y), exactly convex whatever
    numbers are stored. They are scalars: weights for each channel would not do, since (x_1 in channel 1, x_2 in channel
    2) is a concatenation, of constant sqrt(2). `start` gives the first weights.

    Guarantee: the largest of the constants of its parts. Cost: a few passes over the tensors.

    Args:
        start: First weights, one for each part; only their ratios count.
    """

    def __init__(
        self,
        start: tuple[float, ...] = (0.5, 0.5),
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        total = math.fsum(start)
        if len(start) < 2 or min(start) <= 0:
            raise ArgumentError(f"ConvexSum needs two or more positive weights to start from, got {start}.")
        # Part i keeps w_i of what the parts up to i have together.
        shares = [start[i] / math.fsum(start[: i + 1]) for i in range(1, len(start))]
        logits = [math.log(share / (1 - share)) for share in shares]
        self.start = tuple(weight / total for weight in start)
        self.logits = nn.Parameter(torch.tensor(logits, device=device, dtype=dtype))

    def forward(self, *parts: Tensor) -> Tensor:
        """The convex combination of as many tensors as there are weights."""
        if len(parts) != len(self.start):
            raise ArgumentError(f"ConvexSum has {len(self.start)} weights and got {len(parts)} tensors.")
        same_shape(parts)
        shares = torch.sigmoid(self.logits)
        mixed = parts[0]
        for share, part in zip(shares, parts[1:], strict=True):
            mixed = mixed + share.to(mixed.dtype) * (part - mixed)
        return mixed

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights at this moment."""
        found = [1.0]
        for share in torch.sigmoid(self.logits.detach().double()).tolist():
            found = [*(weight * (1 - share) for weight in found), share]
        return tuple(found)

    def extra_repr(self) -> str:
        """The weights at this moment."""
        return ", ".join(f"{weight:.3g}" for weight in self.weights)


@final
class ScaledSum(nn.Module):
    """(x_1 + ... + x_n) / n: the convex combination with fixed equal weights.

    Guarantee: the largest of the constants of its parts.
    """

    def forward(self, *parts: Tensor) -> Tensor:
        """The mean of the tensors."""
        if not parts:
            raise ArgumentError("ScaledSum got no tensors.")
        same_shape(parts)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total * (SAFE / len(parts))


def same_shape(parts: tuple[Tensor, ...]) -> None:
    """Refuse parts that a sum would repeat: n copies of a part have sqrt(n) times its norm."""
    if any(part.shape != parts[0].shape for part in parts[1:]):
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise ShapeError(
            f"Tensors of shapes {shapes} cannot be added without repeating entries, which enlarges norms; give all the "
            "same shape."
        )
