"""Several layers side by side."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import SAFE, Stated
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class Branch(Stated):
    """x -> (f_1(x), ..., f_n(x)) along `axis`: constant sqrt(g_1^2 + ... + g_n^2), g_i the constants of the branches.

    ||(f_i(x) - f_i(y))_i||^2 is the sum of squares. It is not divided by its constant: put it into `Sequential`, or use
    `Concat` behind it. A branch whose constant is not known is refused.

    Args:
        branches: Modules with known constants; all get the same input.
        axis: Axis along which the outputs are concatenated.
    """

    def __init__(self, *branches: nn.Module, axis: int = 1) -> None:
        super().__init__()
        if not branches:
            raise ArgumentError("Branch needs at least one branch.")
        self.branches = nn.ModuleList(branches)
        self.axis = axis
        _ = self.gain

    @property
    def gain(self) -> float:
        """The root of the sum of squares of the branches' constants, rounded up."""
        return math.hypot(*map(gain_of, self.branches)) * (1 + ROUNDINGS_32)

    def forward(self, x: Tensor) -> Tensor:
        """All images, concatenated."""
        return torch.cat([branch(x) for branch in self.branches], self.axis)


@final
class Parallel(Stated):
    """(x_1, ..., x_n) -> (f_1(x_1), ..., f_n(x_n)): each branch gets its own `sizes[i]` channels of the input.

    The map is block-diagonal: its constant is the largest of the branches', not the root of the sum of squares.

    Args:
        branches: Modules with known constants; each gets its part of the input.
        sizes: Number of channels of each part.
        axis: Axis that is split and concatenated.
    """

    def __init__(self, *branches: nn.Module, sizes: tuple[int, ...], axis: int = 1) -> None:
        super().__init__()
        if not branches or len(branches) != len(sizes) or min(sizes) < 1:
            raise ArgumentError(f"Parallel needs one positive size for each of {len(branches)} branches, got {sizes}.")
        self.branches = nn.ModuleList(branches)
        self.sizes = sizes
        self.axis = axis
        _ = self.gain

    @property
    def gain(self) -> float:
        """The largest constant of the branches."""
        return max(map(gain_of, self.branches))

    def forward(self, x: Tensor) -> Tensor:
        """The images of the parts, concatenated."""
        if x.shape[self.axis] != sum(self.sizes):
            raise ShapeError(
                f"Parallel splits {sum(self.sizes)} channels into {self.sizes}, and axis {self.axis} of an input of "
                f"shape {tuple(x.shape)} has {x.shape[self.axis]}."
            )
        parts = x.split(self.sizes, self.axis)
        images = [branch(part) for branch, part in zip(self.branches, parts, strict=True)]
        return torch.cat(images, self.axis)


@final
class Concat(nn.Module):
    """(w_1 x_1, ..., w_n x_n) along `axis` with sum w^2 = 1: if each x_i is a c-Lipschitz function of one input, so is
    it.

    The weights are equal, 1/sqrt(n), or those given, divided by the root of their sum of squares. Guarantee: the
    largest constant of its parts.

    Args:
        axis: Axis of the concatenation.
        weights: Positive weight of each part; equal ones if None.
    """

    def __init__(self, axis: int = 1, weights: tuple[float, ...] | None = None) -> None:
        super().__init__()
        if weights is not None and not (weights and min(weights) > 0):
            raise ArgumentError(f"Concat.weights must be positive numbers, got {weights}.")
        self.axis = axis
        size = 1.0 if weights is None else math.hypot(*weights)
        self.weights = None if weights is None else tuple(w / size * SAFE for w in weights)

    def forward(self, *parts: Tensor) -> Tensor:
        """The concatenation of the scaled parts."""
        if self.weights is None:
            joined = torch.cat(parts, self.axis)
            return joined if len(parts) == 1 else joined * (SAFE / math.sqrt(len(parts)))
        if len(parts) != len(self.weights):
            raise ArgumentError(f"Concat has {len(self.weights)} weights and got {len(parts)} tensors.")
        return torch.cat([part * weight for part, weight in zip(parts, self.weights, strict=True)], self.axis)

    def extra_repr(self) -> str:
        """The axis, and the weights where they are not equal."""
        return f"axis={self.axis}" if self.weights is None else f"axis={self.axis}, weights={self.weights}"
