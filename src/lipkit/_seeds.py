"""Seeds of random numbers: whole numbers that every generator takes, and the draws of proofs."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from lipkit.errors import ArgumentError

_END = 2**63
# Everyone who takes notes of draws, and what is left of draws that are repeated.
_notes: ContextVar[tuple[list[int], ...]] = ContextVar("notes", default=())
_repeated: ContextVar[Iterator[int] | None] = ContextVar("repeated", default=None)


def check_seed(seed: int, name: str = "seed") -> int:
    """The seed, if it lies in [0, 2^63); `name` is what the error calls it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _END:
        raise ArgumentError(f"{name} must lie in [0, 2^63), got {seed}.")
    return seed


def generator(seed: int) -> torch.Generator:
    """A generator on the CPU that starts at a seed."""
    return torch.Generator().manual_seed(check_seed(seed))


def normal(like: torch.Tensor, source: torch.Generator | None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Standard normal numbers in the shape and on the device of a tensor, drawn where `source` lives if there is one.

    `dtype` is that of the tensor if None.
    """
    device = like.device if source is None else source.device
    return torch.randn(like.shape, dtype=dtype or like.dtype, device=device, generator=source).to(like.device)


def derive_seed(seed: int, number: int) -> int:
    """The seed of one of many draws, (1,000,003 seed + number) mod 2^63: different for fewer draws than that factor."""
    return (check_seed(seed) * 1_000_003 + number) % _END


def draw() -> int:
    """128 bits that nobody could know before: the start of a proof by chance. Inside `replaying`, recorded ones."""
    repeated = _repeated.get()
    found = secrets.randbits(128) if repeated is None else next(repeated, None)
    # A replay that asks for more than was recorded is none; its number will not be the recorded one.
    found = secrets.randbits(128) if found is None else found
    for note in _notes.get():
        note.append(found)
    return found


@contextmanager
def recording() -> Iterator[list[int]]:
    """A list of everything that is drawn inside, in order. Recordings may lie inside of each other."""
    note: list[int] = []
    token = _notes.set((*_notes.get(), note))
    try:
        yield note
    finally:
        _notes.reset(token)


@contextmanager
def replaying(draws: Sequence[int]) -> Iterator[None]:
    """Repeat recorded draws in order. What comes out proves nothing: the record can be chosen after the fact."""
    token = _repeated.set(iter(draws))
    try:
        yield
    finally:
        _repeated.reset(token)
