"""Spectral normalisation with a proven norm in the denominator."""

from dataclasses import dataclass
from typing import final

import torch

from lipkit.errors import ArgumentError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._arithmetic.filter_gram import split_phases
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._arithmetic.symbol_norm import norm_above
from lipkit.nn.methods._base import Blocks, WeightMethod


@dataclass(frozen=True)
class DividedByNorm(WeightMethod):
    """A weight divided by a certified norm, which `steps` Gram products bound on a grid of `slack`; abstract."""

    steps: int = 6
    slack: float = 0.01

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 1 <= self.steps <= 20:
            raise ArgumentError(f"{name}.steps must lie in 1..20, got {self.steps}.")
        if not 1e-4 <= self.slack < 1:
            raise ArgumentError(f"{name}.slack must lie in [1e-4, 1), got {self.slack}.")

    def divide(self, raw: Blocks, geometry: Geometry) -> Blocks:
        """raw / b in float64, each block by its own b, or by `LEAST` if that is larger; blocks of zeros stay zero."""
        # Where the result depends on the scale, it is `LEAST`: this divisor needs no gradient.
        largest = raw.detach().flatten(1).abs().amax(1).reshape(-1, *(1,) * (raw.ndim - 1)).to(torch.float64)
        wide = raw.to(torch.float64) / largest.clamp(min=LEAST)
        bound = norm_above(split_phases(wide, geometry), self.steps, self.slack).reshape(largest.shape)
        # No norm is smaller than an entry, and one entry is 1 unless all are below `LEAST`.
        return wide / bound.clamp(min=1.0)


@final
@dataclass(frozen=True)
class Spectral(DividedByNorm):
    """W / b with a certified b >= ||W||: from above, unlike power iteration, so the result never exceeds norm one.

    b is found by `steps` Gram products in float64: for matrices the Schatten norm of index p = 2^(steps + 1), with an
    excess of at most rank^(1/p) - 1, or a row sum, which is sharp for isometries. For kernels the same on the symbol
    (with a stride, of its phases), on a grid that costs at most `slack` more; that bounds the layer on images of every
    size. At the defaults the norm of the result is between 0.98 and 1 for random weights.

    Guarantee: norm at most 1 as stored, for zero and circular padding, strides, dilation, groups and transposed
    convolutions. All singular values are divided by the same number: the condition of the weight stays.
    Cost: `steps` products of the smaller side in float64; for a 3 x 3 kernel, three real ones at each of 544
    frequencies, which makes it by far the slowest method there. The backward pass touches one frequency only.
    Gradient: of the returned value, so of the Schatten norm; weights all below 2^-60 count as small and are not blown
    up. Reference: Miyato et al. 2018 for the division; Delattre
    et al. 2023 for Gram iteration; grid and rounding are ours.

    Args:
        steps: Gram products; each halves the logarithm of the excess.
        slack: Largest relative excess that the grid of frequencies may add, for kernels.
    """

    scale_free = True

    def __str__(self) -> str:
        return f"spectral normalisation, {self.steps} Gram steps"

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        return store(self.divide(raw, geometry), raw.dtype)
