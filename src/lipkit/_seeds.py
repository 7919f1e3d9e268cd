"""Seeds of random numbers: whole numbers that every generator takes."""

import torch

from lipkit.errors import ArgumentError

_END = 2**63


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
