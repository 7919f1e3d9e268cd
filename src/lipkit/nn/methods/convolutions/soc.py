"""Orthogonal kernels as exponentials of skew ones: skew orthogonal convolution."""

import dataclasses
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Padding
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import room_for
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._arithmetic.symbol_norm import norm_above
from lipkit.nn.methods._base import Blocks, Free, Promise
from lipkit.nn.methods.convolutions._base import OrthogonalKernel
from lipkit.nn.methods.convolutions.skew_logarithm import skew_logarithm
from lipkit.rounding.slacks import UNIT

# Terms of the series, and the largest norm of the skew kernel with which they lose at most 2.3e-6 of a singular value.
_LARGEST = {8: 1.0, 12: 2.0}
# The bound of the norm of the skew kernel: Gram products, and how far above the largest of its frequencies it may be.
_STEPS = 4
_SLACK = 0.05
_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@final
@dataclass(frozen=True)
class SOC(OrthogonalKernel):
    """sum over j <= m of A^j / j!, A = min(1, a / b) (V - V*) / 2 a skew kernel, b >= ||V - V*|| / 2 a proven bound.

    V* has transposed taps in the opposite order, so A has imaginary eigenvalues i t, |t| <= a, and the series has
    |sum (i t)^j / j!| <= 1 there: it loses t^(m + 2) / (m! (m + 2)) to first order, and gains nothing for m divisible
    by four. Rows and columns that differ are cut from a square kernel.

    The kernel of the layer has m (k - 1) + 1 taps on each axis, where k were asked for; padding grows with it, so sizes
    stay what was asked for. With circular padding the image must be as large as the padding on one side: at least 8 on
    each axis for degree 8 and kernel 3. Smaller ones are refused.

    Guarantee: norm at most 1 as stored, for zero and circular padding, every stride, dilation, group and size.
    Isometries (singular values above 1 - 2.3e-6, and rounding) are circular convolutions of stride 1, and of any stride
    with rows <= cols. With zero padding this kernel loses at the border; A applied m times, with padding each time,
    would not, but is no convolution.
    Cost: b from symbols on a grid, then m - 1 convolutions of kernels in float64: for n channels, 3 x 3 taps and m = 8
    about 6,000 n^3 products, where AOC has 20. A layer costs up to m^2 times a plain one. Gradient: through everything.
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

    def window(self, geometry: Geometry) -> tuple[int, ...]:
        return (1,) * len(geometry.taps)

    def promise(self, geometry: Geometry) -> Promise:
        if not geometry.taps:
            raise UnsupportedError("SOC makes kernels of convolutions; for matrices use Exponential().")
        if any(t % 2 == 0 for t in geometry.taps):
            raise UnsupportedError(
                f"SOC needs a kernel with a central tap, odd on every axis, got {geometry.taps}; use AOC() for others."
            )
        if geometry.mode is Padding.ZEROS and math.prod(geometry.taps) > 1:
            return Promise.CONTRACTION
        return super().promise(geometry)

    def kernel_geometry(self, geometry: Geometry) -> Geometry:
        more = [(self.degree - 1) * (t - 1) for t in geometry.taps]
        sides = zip(geometry.padding, geometry.dilation, more, strict=True)
        return dataclasses.replace(
            geometry,
            taps=tuple(t + m for t, m in zip(geometry.taps, more, strict=True)),
            padding=tuple((left + d * m // 2, right + d * m // 2) for (left, right), d, m in sides),
        )

    def free_shape(self, geometry: Geometry) -> tuple[int, ...]:
        side = max(geometry.rows, geometry.cols)
        return (side, side, *geometry.taps)

    def __call__(self, raw: Free, geometry: Geometry) -> Blocks:
        skew = self._skew(raw)
        found = self._exponential(skew)[:, : geometry.rows, : geometry.cols]
        room = room_for(geometry.rows, geometry.cols, math.prod(found.shape[3:]), raw.dtype) * self._room(skew)
        return (found * room).to(raw.dtype)

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

    def _exponential(self, skew: Float64[Tensor, "groups n n *taps"]) -> Float64[Tensor, "groups n n *more"]:
        """I + A (I + A/2 (I + A/3 (...))), each product a convolution with images that are the columns of a kernel."""
        groups, side, _, *taps = skew.shape
        axes = tuple(range(2, skew.ndim - 1))
        # torch correlates: the opposite order of taps multiplies kernels.
        weight = skew.flatten(0, 1).flip(axes)
        full = tuple(t - 1 for t in taps)
        conv = _CONV[len(taps)]
        one = torch.eye(side, dtype=skew.dtype, device=skew.device).view(1, side, side, *(1,) * len(taps))
        found = skew / self.degree + self._centred(one, taps)
        for j in range(self.degree - 1, 0, -1):
            image = found.transpose(0, 2).transpose(1, 2).flatten(1, 2)
            image = conv(image, weight / j, padding=full, groups=groups)
            found = image.unflatten(1, (groups, side)).transpose(1, 2).transpose(0, 2)
            found = found + self._centred(one, found.shape[3:])
        return found

    def _centred(self, one: Tensor, taps: tuple[int, ...] | list[int]) -> Tensor:
        return functional.pad(one, [t // 2 for t in reversed(taps) for _ in range(2)])

    def _room(self, skew: Float64[Tensor, "groups n n *taps"]) -> float:
        """The factor that makes room for rounding in float64.

        With n the side, k the taps of A, t those of the result and ||A|| <= a: the product with A / j rounds by
        (k n + 4) u |A| * |E| / j in each entry, so in norm by (k n + 4) u t^(1/2) k^(1/2) ||A||_F ||E||_F / j, at most
        (k n + 4) u (k t)^(1/2) n a exp(a) / j, and what follows makes that at most exp(a) times larger. The sum of 1/j
        is below 4.
        """
        side, taps = skew.shape[1], math.prod(skew.shape[3:])
        whole = math.prod([self.degree * (t - 1) + 1 for t in skew.shape[3:]])
        a = _LARGEST[self.degree]
        lost = (taps * side + 4) * math.sqrt(taps * whole) * side * a * math.exp(2 * a)
        return 1 - 8 * lost * UNIT

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        return skew_logarithm(weight.to(torch.float64), self.free_shape(geometry))

    def without_drift(self, raw: Free, geometry: Geometry) -> Free:
        return self._skew(raw).to(raw.dtype)

    def draw(self, geometry: Geometry) -> Free:
        """Normal numbers of the size at which the norm of A comes to a."""
        shape = (geometry.groups, *self.free_shape(geometry))
        raw = torch.randn(shape, dtype=torch.float64)
        return self._skew(raw * (2 * _LARGEST[self.degree]))

    def start(self, geometry: Geometry) -> Blocks:
        return self(self.draw(geometry), geometry)
