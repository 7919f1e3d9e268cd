"""Kernels orthogonalised as matrices: reshaped kernel orthogonalisation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

import torch

from lipkit.errors import ArgumentError
from lipkit.linops import Padding
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import shrink
from lipkit.nn.layers.pooling import windows_per_entry
from lipkit.nn.methods._base import Blocks, MatrixMethod, Promise, WeightMethod
from lipkit.nn.methods.bjorck import Bjorck


@final
@dataclass(frozen=True)
class RKO(WeightMethod):
    """The kernel as a matrix (rows, cols taps) made orthogonal by `inner`, times 1/sqrt(c), c the overlap of windows.

    On each axis an entry of the input is met by at most ceil(k gcd(s, d) / s) taps, with stride s and dilation d; the
    norm of the convolution is at most the root of their product c times that of the matrix.

    Guarantee: norm at most 1 as stored, for every padding (zero, circular), stride, dilation and size. Isometries are
      - matrices and kernels of one tap, as `inner` promises;
      - rows <= cols taps: kernels without overlap (c = 1) none of whose windows is cut by zero padding;
      - rows >= cols taps: circular convolutions with all windows, s dividing k, and s and d without common factor.
    Otherwise the singular values spread below 1: with rows <= cols taps the mean of their squares is 1/c.
    Cost: `inner` on that matrix. Reference: Li et al. 2019; the factor under dilation is ours.

    Args:
        inner: Method that makes the reshaped kernel orthogonal.
    """

    inner: MatrixMethod = field(default_factory=Bjorck)

    def __post_init__(self) -> None:
        if not isinstance(self.inner, MatrixMethod):
            raise ArgumentError(
                f"RKO.inner must be a method for matrices, such as Bjorck(), Cayley() or QR(), got {self.inner!r:.60}."
            )

    def __str__(self) -> str:
        return f"RKO by {self.inner}"

    def promise(self, geometry: Geometry) -> Promise:
        if math.prod(geometry.taps) == 1:
            return self.inner.promise(geometry)
        if self.inner.promise(Geometry(1, 2, 2)) is not Promise.ISOMETRY:
            return Promise.CONTRACTION
        entries = geometry.cols * math.prod(geometry.taps)
        cut = geometry.mode is Padding.ZEROS and any(map(any, geometry.padding))
        # A A' = I: every window is whole, and no two share an entry.
        onto = geometry.rows <= entries and overlap(geometry) == 1 and not cut
        # A'A = I: every entry is met by each tap of its phase, as many taps in all phases.
        into = geometry.rows >= entries and geometry.mode is Padding.CIRCULAR and all(map(_even, *_axes(geometry)))
        return Promise.ISOMETRY if onto or into else Promise.CONTRACTION

    def least_singular_value(self, weight: Blocks, geometry: Geometry) -> float:
        """That of the kernel as a matrix, times the root of the overlap by which it was divided."""
        return super().least_singular_value(weight, geometry) * math.sqrt(overlap(geometry))

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        found = self.inner.matrix(raw.flatten(2) if geometry.taps else raw).reshape(raw.shape)
        windows = overlap(geometry)
        if windows == 1:
            return found
        # Rounded once for each entry, and the factor once: what `shrink` counts.
        room = shrink(geometry.rows, geometry.cols, math.prod(geometry.taps), raw.dtype)
        return found * (room / math.sqrt(windows))

    def inverse(self, weight: Blocks, geometry: Geometry) -> Blocks:
        flat = weight.flatten(2) if geometry.taps else weight
        return self.inner.inverse_matrix(flat * math.sqrt(overlap(geometry))).reshape(weight.shape)

    def start(self, geometry: Geometry) -> Blocks:
        blocks = torch.empty(geometry.groups, geometry.rows, geometry.cols * math.prod(geometry.taps))
        for block in blocks:
            torch.nn.init.orthogonal_(block)
        return blocks.reshape(geometry.shape) / math.sqrt(overlap(geometry))


def _axes(geometry: Geometry) -> tuple[Iterable[int], Iterable[int], Iterable[int], Iterable[int]]:
    return geometry.taps, geometry.stride, geometry.dilation, map(sum, geometry.padding)


def _even(k: int, s: int, d: int, padded: int) -> bool:
    """Whether a circle on this axis has one window for each multiple of the stride, and phases equally many taps."""
    # Without any padding the size of the circle is not checked, and a rest may be left over.
    return math.gcd(s, d) == 1 and k % s == 0 and padded > d * (k - 1) - s and (padded > 0 or k == s == 1)


def overlap(geometry: Geometry) -> int:
    """The largest number of taps that meet one entry of the input: the product over axes of ceil(k gcd(s, d) / s)."""
    return windows_per_entry(geometry.taps, geometry.stride, geometry.dilation)
