"""Noise and batches that nobody can draw again: from the system's entropy, stored nowhere."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit._seeds import check_seed
from lipkit.errors import ArgumentError

_SEED_BYTES = 32
_WORDS = 8


class Entropy(ABC):
    """Where noise and batches come from."""

    @final
    def normal(self, like: Tensor, deviation: float) -> Float64[Tensor, "..."]:
        """Gaussian noise in the shape and on the device of a tensor, in float64.

        Guarantee: the deviation is that of real numbers up to float64 rounding. Noise in floats is not noise in reals:
        the last bits can tell sums apart (Mironov 2012), and no accountant covers that. Cost: ten nanoseconds a number.
        """
        if not 0.0 <= deviation < float("inf"):
            raise ArgumentError(f"The deviation of noise is a finite number of 0 or more, got {deviation}.")
        if like.device.type == "cpu":
            drawn = torch.from_numpy(np.asarray(self._generator().standard_normal(tuple(like.shape))))
            return drawn.mul_(deviation)
        source = torch.Generator(like.device).manual_seed(int(self._generator().integers(2**63)))
        return torch.randn(like.shape, dtype=torch.float64, device=like.device, generator=source).mul_(deviation)

    @final
    def poisson(self, rows: int, rate: float) -> Int64[Tensor, " chosen"]:
        """The rows of a Poisson batch in increasing order: each with probability `rate`, on its own; there may be none.

        Guarantee: the probability is off by 2^-53 at most.
        """
        if not 0.0 < rate <= 1.0:
            raise ArgumentError(f"A sampling rate lies in (0, 1], got {rate}.")
        return torch.from_numpy(np.flatnonzero(self._generator().random(rows) < rate))

    @final
    def shuffled(self, rows: int) -> Int64[Tensor, " rows"]:
        """A random order of all rows."""
        return torch.from_numpy(self._generator().permutation(rows))

    @property
    @abstractmethod
    def private(self) -> bool:
        """Whether what is drawn can be predicted by nobody."""

    @abstractmethod
    def _generator(self) -> np.random.Generator: ...


@final
@dataclass(frozen=True)
class SystemEntropy(Entropy):
    """The system's entropy: every draw has a new generator with 256 random bits, which is forgotten after it.

    The global seed plays no part, and no checkpoint can hold a state. On accelerators a draw has 63 random bits. The
    generators (PCG64 and the device's own) are not cryptographic: the guarantee is against whoever sees what is
    released, and does not see the generator.
    """

    @property
    def private(self) -> bool:
        return True

    def __str__(self) -> str:
        return "noise and batches from the system's entropy"

    def _generator(self) -> np.random.Generator:
        return _seeded(int.from_bytes(os.urandom(_SEED_BYTES), "little"))


@final
@dataclass(frozen=True)
class Repeatable(Entropy):
    """Draws that a seed determines, for tests: not private, and a report must say so."""

    seed: int
    _draws: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    def __post_init__(self) -> None:
        check_seed(self.seed)

    @property
    def private(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"not private: noise and batches repeat with seed {self.seed}"

    def _generator(self) -> np.random.Generator:
        self._draws[0] += 1
        return np.random.default_rng([self.seed, self._draws[0]])


def _seeded(entropy: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(entropy, pool_size=_WORDS)))
