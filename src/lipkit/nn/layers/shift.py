"""Orthogonal mixing of channels, a sort of pairs, and moves by one pixel: isometries throughout."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Dense, Shape
from lipkit.nn.activations.sorting import order_pairs
from lipkit.nn.core.constrained import constrain, is_constrained, kept_gain
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.known_constants import require_real
from lipkit.nn.layers._constrained_layer import refuse_methods
from lipkit.nn.layers.orthonormal import near_identity
from lipkit.nn.layers.sort_and_move import available, prepare, sort_and_move
from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.norms import NearIsometry

# A share of the channels moves in each direction.
_SHARE = 8


@final
class ShiftBlock(nn.Module):
    """x -> shift(MaxMin(W x + b)): W orthogonal across channels, MaxMin of halves, circular moves of channel groups.

    An eighth of the channels moves by one pixel in each of the two directions of each axis, the others stay: a stack of
    k blocks sees k pixels far, without any convolution. `rank` 1 to 3 is the number of spatial axes; inputs are
    (batch, channels, *spatial), or without batch axis.

    The default method is `Bjorck()`. With `method=None` W is a plain parameter, for optimizers that keep it orthogonal
    themselves; its norm is then proven after the fact, and `gain` promises nothing: chain such blocks by nn.Sequential.

    Guarantee: constant 1 with a method for l2 (by an orthogonal one the Jacobian is orthogonal wherever it exists), in
    bfloat16 and float16 the most that rounding can make of it; without one, the norm of the weight as it is, by
    `NearIsometry`. Cost: one product with W per pixel; sort and moves are one pass over memory in compiled networks on
    CUDA, copies elsewhere.

    Args:
        channels: Number of channels, a multiple of 8.
        rank: Number of spatial axes, 1 to 3.
        method: Keeps W orthogonal; None for a plain weight that an optimizer keeps so.
    """

    weight: Tensor

    def __init__(
        self,
        channels: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        rank: int = 2,
        method: MatrixMethod | None = Bjorck(),  # noqa: B008 - immutable; None means a plain weight
    ) -> None:
        super().__init__()
        refuse_methods(self, bias=bias)
        require_real(self, dtype)
        prepare()
        if not 1 <= rank <= 3:
            raise ArgumentError(f"rank is the number of spatial axes, 1 to 3, got {rank}.")
        if channels % _SHARE:
            raise ArgumentError(
                f"channels must be a multiple of {_SHARE}, one share for each direction, got {channels}."
            )
        self.channels = channels
        self.rank = rank
        start = near_identity(channels).to(device=device, dtype=dtype)
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(torch.zeros(channels, device=device, dtype=dtype)) if bias else None
        if method is not None:
            constrain(self, "weight", method, Geometry(1, channels, channels))

    def reset_parameters(self) -> None:
        """Draw the weight anew near the identity, as the constructor does; biases are zero."""
        if any(numbers.is_meta for numbers in self.parameters()):
            return
        with torch.no_grad():
            start = near_identity(self.channels).to(self.weight)
            if is_constrained(self, "weight"):
                # torch's setter of a parametrized tensor finds the free numbers.
                self.weight = start
            else:
                self.weight.copy_(start)
            if self.bias is not None:
                self.bias.zero_()

    @property
    def gain(self) -> float:
        """1 in float32 and float64 while a method for l2 keeps the weight, in fewer digits the most that rounding makes
        of it; a weight that no method keeps may change with every step, and is refused.
        """
        if not is_constrained(self, "weight"):
            raise UnsupportedError(
                "No method keeps the weight of ShiftBlock (method=None, or its parametrization was changed), so "
                "it promises no constant for all time; put the block into torch.nn.Sequential, where lipkit.lipschitz "
                "proves the weight as it is, or give it a method, such as ShiftBlock(..., method=Bjorck())."
            )
        return kept_gain(self)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """The norm of the weight as it is, by its residual as an isometry; the rest of the block is an isometry."""
        return NearIsometry()(Dense(self.weight))

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """shift(MaxMin(W x + b))."""
        axis = x.ndim - self.rank - 1
        if axis not in (0, 1) or x.shape[axis] != self.channels:
            raise ShapeError(
                f"ShiftBlock with {self.channels} channels and rank {self.rank} takes (batch, channels, "
                f"{self.rank} spatial axes), with or without batch, got {tuple(x.shape)}."
            )
        # Channels last: products of whole rows, and blocks that follow each other copy nothing in between.
        mixed = functional.linear(x.movedim(axis, -1), self.weight, self.bias)
        if available(mixed):
            return sort_and_move(mixed, self.rank).movedim(-1, axis)
        low, high = order_pairs(*mixed.chunk(2, -1))
        return _move_channels(high, low, self.rank).movedim(-1, axis)

    def extra_repr(self) -> str:
        """Channels and rank."""
        return f"{self.channels}, rank={self.rank}"


def _move_channels(high: Float[Tensor, "..."], low: Float[Tensor, "..."], rank: int) -> Float[Tensor, "..."]:
    """Both halves of the channels, an eighth of all moved by one pixel around the circle in each direction.

    Channels are on the last axis, the spatial axes before it. The groups that move are spread over both halves, so that
    larger and smaller of each pair move too.
    """
    share = 2 * high.shape[-1] // _SHARE
    parts = [*high.split(share, -1), *low.split(share, -1)]
    moves = [(place, way) for place in range(high.ndim - 1 - rank, high.ndim - 1) for way in (1, -1)]
    for i, (place, way) in enumerate(moves):
        # 0, 4, 1, 5, ... of the eight parts: both halves in turn.
        at = (i % 2) * (_SHARE // 2) + i // 2
        parts[at] = torch.roll(parts[at], way, place)
    return torch.cat(parts, -1)
