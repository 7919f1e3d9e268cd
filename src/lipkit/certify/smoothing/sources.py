"""Random numbers of a noisy copy: the same for one seed, image, stream and block, whoever draws them and when."""

import enum
import hashlib
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.certify.smoothing.noise import Source

# Bits of a uniform number: (k + 1/2) 2^-bits with 0 <= k < 2^bits is exact in the type and never 0 or 1.
_BITS = {torch.float32: 23, torch.float64: 52}


class Stream(enum.Enum):
    """The purpose of random numbers. Streams have nothing in common, so one may choose what another one proves."""

    SELECTION = "selection"
    PROOF = "proof"
    PREDICTION = "prediction"


def open_source(seed: int, image: int, stream: Stream, block: int, like: Tensor) -> Source:
    """The numbers of one block of noisy copies, on the device of `like` and in its type, float32 or float64.

    The generator starts at SHA-256 of the whole key, so no two blocks share a start: seeds that are sums or products of
    small numbers meet, and the generator of torch on CPUs keeps 32 bits of its seed, of which two of a hundred thousand
    blocks are equal more often than not. On CPUs it is numpy's Philox with a key of 128 bits, on GPUs torch's with one
    of 64 bits.

    Guarantee: the same bits at every call on CPUs; on GPUs on one model of GPU, as torch spreads its numbers over the
    processors that there are. What is drawn is a law on the numbers of the type, not the law on the real line: a
    uniform number has 23 or 52 bits, and a normal one ends where they do.
    """
    key = hashlib.sha256(f"{seed} {image} {stream.value} {block}".encode()).digest()
    return _CudaSource(key, like) if like.device.type == "cuda" else _NumpySource(key, like)


@final
class _NumpySource:
    def __init__(self, key: bytes, like: Tensor) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
        self._like = like

    def normal(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        wide = self._like.dtype is torch.float64
        found = self._generator.standard_normal(shape, dtype=np.float64 if wide else np.float32)
        return torch.from_numpy(found).to(self._like.device)

    def uniform(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        bits = _BITS[self._like.dtype]
        found = torch.from_numpy(self._generator.integers(0, 2**bits, shape, dtype=np.int64))
        return _inside(found.to(self._like), bits)


@final
class _CudaSource:
    def __init__(self, key: bytes, like: Tensor) -> None:
        self._generator = torch.Generator(like.device).manual_seed(int.from_bytes(key[:8], "little"))
        self._like = like

    def normal(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        like = self._like
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=self._generator)

    def uniform(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        bits = _BITS[self._like.dtype]
        found = torch.randint(2**bits, shape, device=self._like.device, generator=self._generator)
        return _inside(found.to(self._like), bits)


def _inside(whole: Float[Tensor, "..."], bits: int) -> Float[Tensor, "..."]:
    return (whole + 0.5) * 2.0**-bits
