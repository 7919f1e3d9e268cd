"""Exponentials of skew kernels, applied as a chain of convolutions: skew orthogonal convolution."""

import dataclasses
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import room_for
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._arithmetic.symbol_norm import norm_above
from lipkit.nn.methods._base import Blocks, Free, Promise, WeightMethod
from lipkit.norms import Auto, Norm
from lipkit.norms.convolutions.skew_series import LONGEST_TURN

# Terms of the series, and the largest norm of the skew kernel with which they lose at most 2.3e-6 of a singular value.
_LARGEST = {8: 1.0, 12: 2.0}
# The bound of the norm of the skew kernel: Gram products, and how far above the largest of its frequencies it may be.
# It only decides how far kernels turn, so a coarse grid will do: 0.05 has almost three times as many points.
_STEPS = 4
_SLACK = 0.15


@final
@dataclass(frozen=True)
class SOC(WeightMethod):
    """x -> sum over j <= m of A^j x / j!, A = min(1, a / b) (V - V*) / 2 skew, b >= ||V - V*|| / 2 a proven bound.

    The weight of the layer is A, and the layer applies it m times. V* has transposed taps in the opposite order, so A
    has imaginary eigenvalues i t, |t| <= a, and the series has |sum (i t)^j / j!| <= 1 there: it loses
    t^(m + 2) / (m! (m + 2)) to first order, and gains nothing for m divisible by four, up to |t| = 3.3. A is padded
    each time it is applied, which leaves it skew with zeros too. Rows and columns that differ are cut from a square
    kernel; a stride, and less padding than keeps the size of images, leave out results; more adds zeros to images.

    Guarantee: norm at most 1 as stored, for zero and circular padding, every stride, dilation, group and size.
    Isometries (singular values above 1 - 2.3e-6) for both paddings: with rows <= cols and no more padding than keeps
    the size of images, any stride; with rows >= cols and no less, stride 1.
    Cost: b from symbols on a grid in float64, for n channels and 3 x 3 taps about 500 n^3 products; a layer costs m
    plain ones of max(rows, cols) channels on whole images, in training and in evaluation. Gradient: through everything.
    Limits: odd kernels. Reference: Singla and Feizi 2021, whose 6 terms in training exceed 1 by 1.5e-4 at ||A|| = 1;
    the proven bound, and a series that is never above one, are ours.

    Args:
        degree: m, 8 for a = 1 or 12 for a = 2.
    """

    degree: int = 8

    def __post_init__(self) -> None:
        if self.degree not in _LARGEST:
            raise ArgumentError(
                f"SOC.degree must be 8, for skew kernels of norm at most 1, or 12, for at most 2, got {self.degree}; "
                "other series may exceed 1."
            )

    def __str__(self) -> str:
        return f"SOC, {self.degree} terms"

    def promise(self, geometry: Geometry) -> Promise:
        if not geometry.taps:
            raise UnsupportedError("SOC makes kernels of convolutions; for matrices use Exponential().")
        if any(t % 2 == 0 for t in geometry.taps):
            raise UnsupportedError(
                f"SOC needs a kernel with a central tap, odd on every axis, got {geometry.taps}; use AOC() for others."
            )
        axes = zip(geometry.taps, geometry.dilation, geometry.padding, strict=True)
        more = [side - d * (t - 1) // 2 for t, d, sides in axes for side in sides]
        onto = geometry.rows <= geometry.cols and max(more) <= 0
        whole = all(s == 1 for s in geometry.stride) and not any(geometry.output_padding)
        into = geometry.rows >= geometry.cols and min(more) >= 0 and whole
        return Promise.ISOMETRY if onto or into else Promise.CONTRACTION

    def kernel_geometry(self, geometry: Geometry) -> Geometry:
        return dataclasses.replace(geometry, series=self.degree)

    def free_shape(self, geometry: Geometry) -> tuple[int, ...]:
        return self.kernel_geometry(geometry).shape[1:]

    def __call__(self, raw: Free, geometry: Geometry) -> Blocks:
        side = raw.shape[1]
        room = room_for(side, side, math.prod(raw.shape[3:]), raw.dtype)
        # Numbers and their negatives are rounded alike: what is stored is skew to the last bit.
        return (self._skew(raw) * room).to(raw.dtype)

    def _skew(self, raw: Free) -> Float64[Tensor, "groups n n *taps"]:
        """A, of norm at most a."""
        wide = raw.to(torch.float64)
        half = (wide - wide.transpose(1, 2).flip(tuple(range(3, raw.ndim)))) / 2
        shape = (-1, *(1,) * (raw.ndim - 1))
        unit = half.detach().abs().flatten(1).amax(1).clamp(min=LEAST)
        level = half / unit.view(shape)
        # Where entries are so small, nothing is divided: any kernel will do that has derivatives, which zero has not.
        measured = torch.where((unit > LEAST).view(shape), level, 1.0)
        size = norm_above(measured, _STEPS, _SLACK)
        return level * torch.minimum(_LARGEST[self.degree] / size, unit).view(shape)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        """A itself, or a weight whose skew part is taken."""
        return weight

    def without_drift(self, raw: Free, geometry: Geometry) -> Free:
        return self._skew(raw).to(raw.dtype)

    def norm_on_every_size(self, weight: Blocks, geometry: Geometry, enough: float) -> float:
        """1 if the kernel is skew as it is and its norm below 3.3, exp(||A||) otherwise."""
        wide = weight.to(torch.float64)
        unit = float(wide.abs().max())
        if unit == 0:
            return 1.0
        size = float(norm_above(wide / unit, _STEPS, _SLACK).max()) * unit
        skew = torch.equal(wide, -wide.transpose(1, 2).flip(tuple(range(3, wide.ndim))))
        return 1.0 if skew and size <= LONGEST_TURN else math.exp(size)

    def least_singular_value(self, weight: Blocks, geometry: Geometry) -> float:
        """1 - t^(m + 2) / (m! (m + 2)) with t = ||A||, and as much again for higher orders."""
        wide = weight.to(torch.float64)
        unit = float(wide.abs().max())
        size = float(norm_above(wide / unit, _STEPS, _SLACK).max()) * unit if unit else 0.0
        return 1 - 2 * size ** (self.degree + 2) / (math.factorial(self.degree) * (self.degree + 2))

    def norm(self, geometry: Geometry) -> Norm:
        return Auto(failure=0)

    def draw(self, geometry: Geometry) -> Free:
        """Normal numbers of the size at which the norm of A comes to a."""
        shape = (geometry.groups, *self.free_shape(geometry))
        raw = torch.randn(shape, dtype=torch.float64)
        return self._skew(raw * (2 * _LARGEST[self.degree]))

    def start(self, geometry: Geometry) -> Blocks:
        return self(self.draw(geometry), geometry)
