"""Whether tensors still hold the bits that they held before."""

import functools
import hashlib
import math
import os
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from torch import Tensor, nn

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# The number of keys that a checksum draws for each level.
_KEYS = 4096
# Nobody outside of this process can build two tensors with one checksum.
_SECRET = os.urandom(32)


@final
@dataclass(frozen=True, eq=False)
class Seal:
    """The types, layouts and bits of some tensors at one time.

    In main memory the bits are copied, so that comparing them is exact; where looking at them means waiting for a
    device, or where tensors are not plain ones, their checksums are taken instead.
    """

    layouts: tuple[object, ...]
    copies: tuple[Tensor, ...] | None
    sums: tuple[int, ...]

    @classmethod
    def of(cls, *tensors: Tensor) -> Self:
        """The seal of these tensors. Cost: a copy of them, or one pass and a wait for the device."""
        layouts = tuple(map(_layout, tensors))
        if all(map(is_plain, tensors)):
            return cls(layouts, tuple(t.detach().clone() for t in tensors), ())
        return cls(layouts, None, tuple(map(checksum, tensors)))

    def extended(self, tensor: Tensor) -> Self:
        """The seal of the same tensors as they were, and of one more as it is."""
        more = type(self).of(tensor)
        if self.copies is None or more.copies is None:
            # Results of plain tensors are plain; a seal of both kinds would fit nothing.
            copies, sums = None, self.sums + more.sums
        else:
            copies, sums = self.copies + more.copies, ()
        return type(self)(self.layouts + more.layouts, copies, sums)

    def fits(self, *tensors: Tensor) -> bool:
        """Whether these tensors have the same bits, in the same types and layouts. Cost: one pass over them."""
        if tuple(map(_layout, tensors)) != self.layouts:
            return False
        if self.copies is None:
            return tuple(map(checksum, tensors)) == self.sums
        return all(map(_same_bits, self.copies, tensors))


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is of torch's own class, in main memory, with an address for every entry."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.element_size() in _BITS
        and not (tensor.is_neg() or tensor.is_conj())
    )


def checksum(tensor: Tensor) -> int:
    """A number that changes when one entry does, and with probability 1 - 2^-62 at least when several do.

    Two sums of the bits times an odd key for each place, with 64 bits that wrap around, which both stay what they were
    with probability (2^-31)^2: 32 bits at a time, because the highest bit of a longer number loses its key. Keys are
    drawn anew in each process. Cost: two passes over the tensor, and on an accelerator a wait for it.
    """
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    size = flat.element_size()
    whole = (flat.numel() * size) % 4 == 0 and (flat.storage_offset() * size) % 4 == 0
    words = flat.view(torch.int32 if whole else _BITS[size]).to(torch.int64)
    first, second = torch.stack([_keyed_sum(words, chain) for chain in (0, 1)]).tolist()
    return (first << 64) + second


def _keyed_sum(words: Tensor, chain: int) -> Tensor:
    if words.numel() <= _KEYS:
        return (words * _keys(_KEYS, 2 * chain, words.device)[: words.numel()]).sum()
    keys = _keys(_KEYS, 2 * chain, words.device)
    full = words.numel() // _KEYS * _KEYS
    rest = words[full:]
    sums = torch.cat([(words[:full].view(-1, _KEYS) * keys).sum(1), (rest * keys[: len(rest)]).sum()[None]])
    # Halves, for the reason that holds for words.
    halves = sums.view(torch.int32).to(torch.int64)
    count = 2 ** math.ceil(math.log2(halves.numel()))
    return (halves * _keys(count, 2 * chain + 1, words.device)[: halves.numel()]).sum()


@functools.lru_cache(maxsize=32)
def _keys(count: int, level: int, device: torch.device) -> Tensor:
    drawn = bytearray(hashlib.shake_256(_SECRET + bytes([level])).digest(8 * count))
    return (torch.frombuffer(drawn, dtype=torch.int64) | 1).to(device)


def _layout(tensor: Tensor) -> object:
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return type(tensor), tensor.dtype, tensor.device, tensor.shape, strides, tensor.requires_grad


def _same_bits(copy: Tensor, tensor: Tensor) -> bool:
    bits = _BITS[tensor.element_size()]
    # Of numpy, which compares integers twice as fast as torch.
    return np.array_equal(copy.view(bits).numpy(), tensor.detach().view(bits).numpy())
