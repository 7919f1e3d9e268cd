"""Orthogonal convolutions by the Cayley transform in Fourier space."""

from dataclasses import dataclass
from typing import final

import torch

from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.safe_scaling import cap
from lipkit.nn.methods._base import Blocks, Free
from lipkit.nn.methods._isometry import close_isometry
from lipkit.nn.methods.cayley import Cayley, invert_transform
from lipkit.nn.methods.fourier._base import FourierMethod, Symbols

# The largest norm of free numbers: far beyond it the transform changes no more, and nothing overflows.
_MOST = 2.0**20


@final
@dataclass(frozen=True)
class FourierCayley(FourierMethod):
    """The Cayley transform of the symbol F = [U; V] of the kernel, U square, at each frequency of the torus:

        A = U - U* + V*V,   Z = (I + A)^-1,   Q = [2 Z - I; -2 V Z],

    which for as many outputs as inputs is (I - A)(I + A)^-1 with A skew-Hermitian. With fewer outputs than inputs it is
    transposed. It is `Cayley` at each frequency; free numbers with a norm above 2^20 are scaled down to it.

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
        # Kept in complex128, whatever the type of the free numbers: the kernel is rounded once, at the end.
        if geometry.rows < geometry.cols:
            return close_isometry(Cayley().isometry(symbols.mH), torch.complex128, may_fall_short=False).mH
        return close_isometry(Cayley().isometry(symbols), torch.complex128, may_fall_short=False)

    def level(self, raw: Free) -> Free:
        return cap(raw.flatten(2), _MOST).reshape(raw.shape)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        """The inverse transform at each frequency, and of that what free numbers can hold.

        This is all of it if they made it and their taps lie symmetrically, as those of odd kernels do.
        """
        symbols = self.symbols_of(weight)
        free = invert_transform(symbols.mH).mH if geometry.rows < geometry.cols else invert_transform(symbols)
        return self.window(self.kernel_of(free, geometry), geometry)
