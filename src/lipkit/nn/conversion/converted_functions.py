"""Functions of tensors as layers of constant 1, for conversions."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ShapeError
from lipkit.nn.core.known_constants import SAFE, Contraction, EveryNorm


@final
class Clamp(EveryNorm, Contraction):
    """x cut off below `low` and above `high`; None is no limit. Guarantee: constant 1 in every l_p."""

    def __init__(self, low: float | None, high: float | None) -> None:
        super().__init__()
        self.low = low
        self.high = high

    def forward(self, x: Tensor) -> Tensor:
        """The entries within the limits."""
        return x.clamp(self.low, self.high)


@final
class Extreme(Contraction):
    """The largest (or the smallest) entry over axes: |max x - max y| <= max |x - y|. Guarantee: constant 1.

    Every entry belongs to one maximum, so squares add up.

    Args:
        dim: Axes over which it is taken; not the batch.
        keepdim: Whether they stay, with length 1.
        least: Whether the smallest entry is taken.
    """

    def __init__(self, dim: tuple[int, ...], keepdim: bool = False, least: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.keepdim = keepdim
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        """The extreme entries."""
        if 0 in {axis % x.ndim for axis in self.dim}:
            raise ShapeError(f"The axes {self.dim} of an input of shape {tuple(x.shape)} contain the batch.")
        return (torch.amin if self.least else torch.amax)(x, self.dim, self.keepdim)


@final
class NearestUpsample(Contraction):
    """Every entry repeated `factors[i]` times along the i-th axis behind the channels, divided by sqrt(repetitions).

    Guarantee: constant 1 (an isometry up to rounding). One factor stands for all axes.
    """

    def __init__(self, factors: tuple[int, ...]) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        """The enlarged image."""
        axes = x.ndim - 2
        factors = self.factors * axes if len(self.factors) == 1 else self.factors
        if axes < 1 or len(factors) != axes:
            raise ShapeError(f"NearestUpsample({self.factors}) got an input of shape {tuple(x.shape)}.")
        for axis, factor in enumerate(factors, start=2):
            x = x.repeat_interleave(factor, axis)
        return x * (SAFE / math.sqrt(math.prod(factors)))


@final
class Sharpened(EveryNorm, Contraction):
    """f(s x) / s with a learnt sharpness s > 0, for an activation f of constant 1 that is near a rectifier far out.

    Slopes of f(s x) / s are those of f, at another place, so the constant is that of f for every s. Signals in a
    1-Lipschitz network are small: there GELU is nearly x / 2, which loses half and bends nothing. Guarantee:
    constant 1 in every l_p.

    Args:
        activation: A function of single entries with constant 1.
        sharpness: s at the start.
    """

    def __init__(self, activation: Contraction, sharpness: float) -> None:
        super().__init__()
        self.activation = activation
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(sharpness)))

    def forward(self, x: Tensor) -> Tensor:
        """f(s x) / s."""
        # Within these limits s and 1 / s are normal numbers of every type.
        sharpness = self.log_sharpness.clamp(-8, 8).exp().to(x.dtype)
        return self.activation(x * sharpness) * (_margin(x.dtype) / sharpness)


def _margin(dtype: torch.dtype) -> float:
    """Covers the roundings of the two factors in this type, whose product would be one."""
    return 1 - 4 * max(torch.finfo(dtype).eps, 1 - SAFE)
