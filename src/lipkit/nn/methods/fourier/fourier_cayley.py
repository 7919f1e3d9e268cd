"""Orthogonal convolutions by the Cayley transform in Fourier space."""

import math
from dataclasses import dataclass
from typing import final

import torch

from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.safe_scaling import cap
from lipkit.nn.methods._base import Blocks, Free
from lipkit.nn.methods.fourier._base import FourierMethod
from lipkit.nn.methods.fourier._unitary import Symbols, close_unitary

# The largest norm of free numbers: far beyond it the transform changes no more, and nothing overflows.
_MOST = 2.0**20
# The largest norm of A, the condition of I + A, which one Björck step has to make up for.
_LARGEST = {torch.complex64: 2.0**13, torch.complex128: 2.0**26}
# Singular values of I + A below this part of the largest count as zero: half of the digits of float64.
_SINGULAR = 2.0**-26


@final
@dataclass(frozen=True)
class FourierCayley(FourierMethod):
    """The Cayley transform of the symbol F = [U; V] of the kernel, U square, at each frequency of the torus:

        A = U - U* + V*V,   Z = (I + A)^-1,   Q = [2 Z - I; -2 V Z],

    which for as many outputs as inputs is (I - A)(I + A)^-1 with A skew-Hermitian. With fewer outputs than inputs it is
    transposed. It is `Cayley` for each frequency; free numbers with a norm above 2^20 are scaled down to it.

    Guarantee: an isometry on images of `in_size` with circular padding, for all free numbers, norm at most 1 as stored.
    Reached: kernels whose symbols have no eigenvalue -1 and whose inverse transform is as small as the free numbers.
    Cost: one complex inverse for each frequency; the layer multiplies in Fourier space.
    Gradient: of the inverse, two products.
    Reference: Trockman and Kolter 2021.

    Args:
        in_size: The size of the images, one number for each axis.
    """

    in_size: Shape

    def __str__(self) -> str:
        return f"Cayley in Fourier space on {'x'.join(map(str, self.in_size))}"

    def isometries(self, symbols: Symbols, geometry: Geometry) -> Symbols:
        if geometry.rows < geometry.cols:
            return close_unitary(_transform(symbols.mH), may_fall_short=False).mH
        return close_unitary(_transform(symbols), may_fall_short=False)

    def level(self, raw: Free) -> Free:
        return cap(raw.flatten(2), _MOST).reshape(raw.shape)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        """The inverse transform at each frequency, and of that what free numbers can hold.

        This is all of it if they made it and their taps lie symmetrically, as those of odd kernels do.
        """
        symbols = self.symbols_of(weight)
        wide = geometry.rows < geometry.cols
        free = _inverse_transform(symbols.mH).mH if wide else _inverse_transform(symbols)
        return self.window(self.kernel_of(free, geometry), geometry)


def _transform(tall: Symbols) -> Symbols:
    """[2 Z - I; -2 V Z], as in `Cayley`: halves, because 2 Z is the inverse of (I + A) / 2."""
    n = tall.shape[-1]
    most = _LARGEST[tall.dtype]
    half, lower = tall[:, :n] / 2, tall[:, n:]
    identity = torch.eye(n, dtype=tall.dtype, device=tall.device).expand(len(tall), -1, -1)
    inner = _cap(half - half.mH, most) + identity / 2
    if not lower.shape[-2]:
        return torch.linalg.inv_ex(inner).inverse - identity
    lower = _cap(lower, math.sqrt(most))
    solved = torch.linalg.inv_ex(inner + torch.bmm(lower.mH, lower) / 2).inverse
    return torch.cat([solved - identity, torch.bmm(-lower, solved)], -2)


def _inverse_transform(tall: Symbols) -> Symbols:
    """U = (K - K*) / 4 with K = (I - Q)(I + Q)^-1, V = -Q_2 (I + Q)^-1, of [Q; Q_2]."""
    n = tall.shape[-1]
    upper, lower = tall[:, :n], tall[:, n:]
    identity = torch.eye(n, dtype=tall.dtype, device=tall.device)
    # The pseudo-inverse is the inverse within reach, and finite elsewhere.
    solved = torch.linalg.pinv(identity + upper, rtol=_SINGULAR)
    quotient = (identity - upper) @ solved
    return torch.cat([(quotient - quotient.mH) / 4, -lower @ solved], -2)


def _cap(x: Symbols, most: float) -> Symbols:
    """x min(1, most / ||x||_F)."""
    return torch.view_as_complex(
        cap(torch.view_as_real(x.resolve_conj()).flatten(-2), most).unflatten(-1, (x.shape[-1], 2))
    )
