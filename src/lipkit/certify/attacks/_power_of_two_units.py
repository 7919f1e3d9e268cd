"""Lengths in units that are powers of two: exact, and no square leaves the range of floats."""

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from lipkit.rounding.slacks import ULP

# The exponent that 0 gets: in units of the smallest float64 every other number is 1 or more.
_SMALLEST = -1074
# The number 2^k in float64 is stored as (k + 1023) 2^52.
_BIAS, _MANTISSA = 1023, 52


def exponents(sizes: Float64[Tensor, " n"]) -> Int[Tensor, " n"]:
    """e with 2^(e - 1) <= size < 2^e for each size > 0, and -1074 for 0."""
    return torch.where(sizes > 0, torch.frexp(sizes).exponent.long(), _SMALLEST)


def shift_exponents(values: Float64[Tensor, "n ..."], by: Int[Tensor, " n"]) -> Float64[Tensor, "n ..."]:
    """values 2^by for each sample: exact unless it leaves the normal numbers; too large becomes infinite."""
    # In two steps: a factor 2^1074 is no float64. Made from its bits, a power of two is exact on every device.
    half = torch.div(by, 2, rounding_mode="floor")
    for share in (half, by - half):
        values = values * ((share + _BIAS) << _MANTISSA).view(torch.float64).view(-1, *[1] * (values.ndim - 1))
    return values


def lengths(offsets: Float64[Tensor, "n ..."], p: float) -> Float64[Tensor, " n"]:
    """||offset||_norm of each sample, rounded up: never below the true length."""
    flat = offsets.flatten(1)
    unit = exponents(torch.linalg.vector_norm(flat, ord=1, dim=1).clamp(max=torch.finfo(flat.dtype).max))
    # A sum of d terms and a root; the difference the offset came from was rounded once more.
    found = torch.linalg.vector_norm(shift_exponents(flat, -unit), ord=p, dim=1) * (1 + length_slack(flat.shape[1]))
    back = shift_exponents(found, unit)
    return torch.where(
        shift_exponents(back, -unit) < found, torch.nextafter(back, torch.full_like(back, torch.inf)), back
    )


def round_inward(values: Float64[Tensor, "n ..."], by: Int[Tensor, " n"]) -> Float64[Tensor, "n ..."]:
    """values 2^by, towards 0 where that is no float64."""
    found = shift_exponents(values, by)
    too_far = shift_exponents(found, -by).abs() > values.abs()
    return torch.where(too_far, torch.nextafter(found, torch.zeros_like(found)), found)


def length_slack(size: int) -> float:
    """Relative error of a length of `size` entries in float64, generously: sum, root, and the difference before it."""
    return (size + 8) * ULP
