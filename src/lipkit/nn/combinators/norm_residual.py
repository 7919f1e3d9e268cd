"""Residual connections without a sum: norms of pairs, and halves of the channels."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.combinators.sums import same_shape
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import SAFE, Contraction, Stated
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class L2NormResidual(Contraction):
    """((x^2 + f(x)^2) / (1 + g^2) + eps)^(1/2) entry by entry, g = gain f: a mean of squares for g = 1.

    Guarantee: constant 1: (x, f(x)) has constant (1 + g^2)^(1/2), and the length of (a, b, eps^(1/2)) moves no more
    than (a, b) does. Signs are lost. Where x and f(x) are zero the gradient is zero, by eps > 0. A branch whose
    constant is not known is refused. Cost: one pass.
    Reference: the package orthogonium, for g = 1; the rule for other g is ours.

    Args:
        branch: The module f, whose constant is known.
        eps: Number under the root, > 0.
    """

    def __init__(self, branch: nn.Module, eps: float = 1e-6) -> None:
        super().__init__()
        if not 0 < eps < math.inf:
            raise ArgumentError(
                f"L2NormResidual.eps must be a positive number, got {eps}; without it the root has no slope at zero."
            )
        self.branch = branch
        self.eps = eps
        self.factor = SAFE / math.hypot(1.0, gain_of(branch))

    @property
    def gain(self) -> float:
        """1 while the branch has the constant it was built with; of another branch, what that makes of it."""
        product = math.hypot(1.0, gain_of(self.branch)) * self.factor * (1 + ROUNDINGS_32)
        return max(1.0, product)

    def forward(self, x: Tensor) -> Tensor:
        """The length of (x, f(x)), scaled, for each entry."""
        image = self.branch(x)
        same_shape((x, image))
        image = image.to(x.dtype)
        # The root of eps first: the length of (0, 0) has no derivative.
        scaled = x * self.factor
        length = torch.hypot(scaled, torch.full_like(scaled, math.sqrt(self.eps)))
        return torch.hypot(length, image * self.factor)


@final
class ConcatResidual(Stated):
    """(x_1, f(x_2)) for the two halves x_1, x_2 of the channels: half of the input is passed on as it is.

    Guarantee: constant max(1, gain f); an isometry if f is one, where a sum is none. Half of the channels are never
    changed: mix them before the next block, by a linear layer or nn.ChannelShuffle. A branch whose constant is not
    known is refused. Cost: one copy. Reference: the package orthogonium. `Parallel` takes parts of other sizes.

    Args:
        branch: The module f of half the channels, whose constant is known.
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(self, branch: nn.Module, axis: int = 1) -> None:
        super().__init__()
        self.branch = branch
        self.axis = axis
        _ = self.gain

    @property
    def gain(self) -> float:
        """max(1, gain f)."""
        return max(1.0, gain_of(self.branch))

    def forward(self, x: Tensor) -> Tensor:
        """The first half, and the image of the second."""
        if x.shape[self.axis] % 2:
            raise ShapeError(
                f"ConcatResidual halves the channels, and axis {self.axis} of an input of shape {tuple(x.shape)} has "
                f"{x.shape[self.axis]}; use an even number, or Parallel with sizes of your choice."
            )
        first, second = x.chunk(2, self.axis)
        return torch.cat([first, self.branch(second)], self.axis)
