"""Residual connections with a constant."""

from typing import final

import torch
from torch import Tensor, nn

from lipkit.nn.combinators.sums import ConvexSum, same_shape
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import SAFE, Contraction, at_least_one


@final
class ConvexResidual(Contraction):
    """(1 - a) x + a f(x) / max(1, gain f) with a learnt share a in (0, 1), `start` at first.

    Guarantee: constant 1 for every a, because the combination is convex: see `ConvexSum`. A branch whose constant is
    not known is refused. As a goes to 0 the block becomes the identity; it cannot become 1 + Lip f > 1 as x + f(x)
    does.

    Args:
        branch: The module f, whose constant is known.
        start: Share a of the branch at the start, in (0, 1).
    """

    def __init__(self, branch: nn.Module, start: float = 0.5) -> None:
        super().__init__()
        self.branch = branch
        gain = gain_of(branch)
        self.factor = SAFE / gain if gain > 1 else 1.0
        like = next(branch.parameters(), torch.empty(0))
        self.sum = ConvexSum((1 - start, start), device=like.device, dtype=like.dtype)

    @property
    def gain(self) -> float:
        """1 while the branch has the constant it was built with; of another branch, what that makes of it."""
        return at_least_one(gain_of(self.branch), self.factor)

    def forward(self, x: Tensor) -> Tensor:
        """The mixture of x and the branch."""
        image = self.branch(x)
        return self.sum(x, image if self.factor == 1.0 else image * self.factor)


@final
class ScaledResidual(Contraction):
    """(x + f(x)) / (1 + gain f): the residual sum divided by its constant.

    Guarantee: constant 1; the division is undone by `Sequential(..., K=...)` where a larger constant is wanted. A
    branch whose constant is not known is refused.

    Args:
        branch: The module f, whose constant is known.
    """

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.factor = SAFE / (1 + gain_of(branch))

    @property
    def gain(self) -> float:
        """1 while the branch has the constant it was built with; of another branch, what that makes of it."""
        return at_least_one(1 + gain_of(self.branch), self.factor)

    def forward(self, x: Tensor) -> Tensor:
        """The scaled sum."""
        image = self.branch(x)
        same_shape((x, image))
        return (x + image) * self.factor
