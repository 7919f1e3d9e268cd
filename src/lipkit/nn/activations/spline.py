"""Learnable piecewise linear activations with slopes in [-1, 1]."""

import enum
import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations._channels import same_channels
from lipkit.nn.activations.prelu import slopes_from
from lipkit.nn.core.known_constants import Contraction, EveryNorm

# Slopes of this size at the start: at exactly 1 the derivative of sin would be zero.
_START = 0.99


class SplineStart(enum.Enum):
    """The function a spline starts as, up to a factor .99."""

    IDENTITY = "identity"
    ABSOLUTE = "absolute value"
    RELU = "rectifier"

    def slopes(self, middles: Float[Tensor, " pieces"]) -> Float[Tensor, " pieces"]:
        """The slope on each piece, given a point inside it."""
        if self is SplineStart.IDENTITY:
            return torch.ones_like(middles)
        return torch.where(middles > 0, 1.0, -1.0 if self is SplineStart.ABSOLUTE else 0.0).to(middles)


@final
class Spline(EveryNorm, Contraction):
    """A continuous piecewise linear function for each channel, with learnt slopes s = sin(free) in [-1, 1].

    Knots are at -radius, ..., radius in equal steps, `pieces` intervals between them and one half-line on either side:
        f(x) = b + s_0 min(x + radius, 0) + sum_i s_i (clamp(x, t_i, t_i+1) - t_i) + s_last max(x - radius, 0).
    It is evaluated by looking up the piece of each entry: the same cost for any number of pieces.

    Guarantee: constant 1, because every slope is in [-1, 1] by construction. The value at a knot is the sum of what
    comes before it, so the pieces meet. At a knot the derivative is that of the piece on the right.
    Reference: Bohra et al. 2021 and Ducotterd et al. 2024 project the slopes instead.

    Args:
        channels: Number of channels, each with a function of its own.
        pieces: Number of intervals between the outer knots.
        radius: Place of the outer knots, in units of the input.
        start: Function at the start.
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(
        self,
        channels: int,
        pieces: int = 8,
        radius: float = 2.0,
        start: SplineStart = SplineStart.ABSOLUTE,
        axis: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if pieces < 1 or not radius > 0:
            raise ArgumentError(f"Spline needs pieces >= 1 and radius > 0, got {pieces} and {radius}.")
        self.channels = channels
        self.pieces = pieces
        self.radius = radius
        self.axis = axis
        step = 2 * radius / pieces
        middles = torch.linspace(-radius - step / 2, radius + step / 2, pieces + 2, dtype=torch.float64)
        raw = (start.slopes(middles) * math.asin(_START)).to(device, dtype or torch.get_default_dtype())
        self.raw = nn.Parameter(raw.repeat(channels, 1))
        # The value at zero of the started function is zero up to the rest of the piece that holds it.
        self.bias = nn.Parameter(-self._at_zero(raw).to(raw).expand(channels).clone())

    @property
    def slopes(self) -> Float[Tensor, "channels pieces"]:
        """The slopes: on the left half-line, on the pieces, on the right half-line."""
        return slopes_from(self.raw)

    def forward(self, x: Tensor) -> Tensor:
        """f(x), with the function of its channel for each entry."""
        same_channels(x, self.axis, self.channels, "Spline")
        first = x.movedim(self.axis, 0)
        flat = first.reshape(self.channels, -1)
        slopes = self.slopes
        step = 2 * self.radius / self.pieces
        # Piece 0 is the left half-line and starts, like piece 1, at -radius; piece pieces + 1 starts at radius.
        where = (((flat.detach() + self.radius) / step).floor() + 1).clamp(0, self.pieces + 1).nan_to_num().long()
        rises = nn.functional.pad(slopes[:, 1:-1].cumsum(-1) * step, (2, 0))
        start = (where - 1).clamp(min=0).to(slopes.dtype) * step - self.radius
        found = self.bias[:, None] + rises.gather(1, where) + slopes.gather(1, where) * (flat - start)
        return found.to(x.dtype).reshape(first.shape).movedim(0, self.axis)

    def _at_zero(self, raw: Tensor) -> Tensor:
        step = 2 * self.radius / self.pieces
        ends = torch.linspace(-self.radius, self.radius, self.pieces + 1, dtype=torch.float64)
        covered = (ends[1:].clamp(max=0) - ends[:-1].clamp(max=0)).clamp(0, step)
        return (torch.sin(raw[1:-1].double().cpu()) * covered).sum()
