"""Activations that sort channels: permutations at every point."""

import enum
from typing import final

import torch
from torch import Tensor

from lipkit._compilers import is_exporting
from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.activations._channels import channels_of
from lipkit.nn.core.known_constants import EveryNorm, Isometric


class ChannelPairing(enum.Enum):
    """The channels that MaxMin compares with each other."""

    # Channels 0 and 1, 2 and 3, ...
    NEIGHBOURS = "neighbours"
    # Channel i of the first half and channel i of the second: contiguous in memory.
    HALVES = "halves"

    def __str__(self) -> str:
        return self.value


def order_pairs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The smaller and the larger of two tensors, entry by entry, as a permutation of each pair.

    torch halves the derivatives of a maximum at ties, which loses half of a gradient's energy on constant images; a
    selection keeps all of it. Without gradients, minimum and maximum give the same numbers several times faster; and
    exported graphs say so, because their readers know these operations.
    """
    if is_exporting() or not torch.is_grad_enabled():
        return torch.minimum(a, b), torch.maximum(a, b)
    swapped = a > b
    return torch.where(swapped, b, a), torch.where(swapped, a, b)


@final
class GroupSort(EveryNorm, Isometric):
    """Sorts the channels within groups of `size` neighbours, ascending.

    The Jacobian is a permutation at every point, ties included: constant 1 in every l_p (exact), norms of inputs and of
    gradients are kept. Cost: pairs by one minimum and one maximum, larger groups by torch.sort.
    The number of channels must be a multiple of `size`. Reference: Anil, Lucas and Grosse 2019.

    Args:
        size: Number of neighbouring channels in a group.
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(self, size: int, axis: int = 1) -> None:
        super().__init__()
        if size < 1:
            raise ArgumentError(f"GroupSort.size must be at least 1, got {size}.")
        self.size = size
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """The channels of each group in ascending order."""
        _whole(x, self.axis, self.size, f"GroupSort({self.size})")
        if self.size == 2:
            return _sorted_neighbours(x, self.axis, descending=False)
        axis = self.axis % x.ndim
        grouped = x.unflatten(axis, (-1, self.size))
        return grouped.sort(dim=axis + 1).values.flatten(axis, axis + 1)


@final
class MaxMin(EveryNorm, Isometric):
    """(min(a, b), max(a, b)) of pairs of channels; `pairing` says which channels are pairs.

    The Jacobian is a permutation at every point, ties included: constant 1 in every l_p (exact). The smaller comes
    first. The number of channels must be even. Reference: Anil, Lucas and Grosse 2019.

    Args:
        pairing: Which channels are pairs: neighbours, or halves.
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(self, pairing: ChannelPairing = ChannelPairing.NEIGHBOURS, axis: int = 1) -> None:
        super().__init__()
        if not isinstance(pairing, ChannelPairing):
            raise ArgumentError(
                f"MaxMin.pairing must be ChannelPairing.NEIGHBOURS or ChannelPairing.HALVES, got {pairing!r}."
            )
        self.pairing = pairing
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Each pair in ascending order, in the place of its channels."""
        _whole(x, self.axis, 2, "MaxMin")
        if self.pairing is ChannelPairing.NEIGHBOURS:
            return _sorted_neighbours(x, self.axis, descending=False)
        first, second = x.chunk(2, self.axis)
        return torch.cat(order_pairs(first, second), self.axis)


@final
class OPLU(EveryNorm, Isometric):
    """(max(a, b), min(a, b)) of neighbouring channels: MaxMin with the larger first.

    The Jacobian is a permutation at every point, ties included: constant 1 in every l_p (exact). The number of channels
    must be even. Reference: Chernodub and Nowicki 2016.

    Args:
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Each pair in descending order."""
        _whole(x, self.axis, 2, "OPLU")
        return _sorted_neighbours(x, self.axis, descending=True)


@final
class FullSort(EveryNorm, Isometric):
    """Sorts all channels, ascending: GroupSort with one group.

    The Jacobian is a permutation at every point: constant 1 in every l_p (exact). Cost: torch.sort.
    Reference: Anil, Lucas and Grosse 2019.

    Args:
        axis: Axis of the channels; 1 after a batch axis.
    """

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """All channels in ascending order."""
        channels_of(x, self.axis, "FullSort")
        return x.sort(dim=self.axis).values


def _sorted_neighbours(x: Tensor, axis: int, *, descending: bool) -> Tensor:
    axis %= x.ndim
    pairs = x.unflatten(axis, (-1, 2))
    low, high = order_pairs(pairs.select(axis + 1, 0), pairs.select(axis + 1, 1))
    return torch.stack((high, low) if descending else (low, high), axis + 1).flatten(axis, axis + 1)


def _whole(x: Tensor, axis: int, size: int, name: str) -> None:
    channels = channels_of(x, axis, name)
    if channels % size:
        raise ShapeError(
            f"{name} sorts groups of {size} channels, and axis {axis} of an input of shape {tuple(x.shape)} has "
            f"{channels}; use a number of channels that {size} divides, another group size, or FullSort."
        )
