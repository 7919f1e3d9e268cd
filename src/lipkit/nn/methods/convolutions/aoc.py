"""Orthogonal kernels for every stride: adaptive orthogonal convolution."""

import math
from dataclasses import dataclass, field
from typing import final

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.filter_gram import periods
from lipkit.nn.methods._base import Blocks, Free, MatrixMethod, Promise
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.convolutions._base import ChainMethod, chain_of
from lipkit.nn.methods.convolutions.projector_chain import ProjectorChain
from lipkit.nn.methods.rescale import AOL
from lipkit.norms import Auto, Norm


@final
@dataclass(frozen=True)
class AOC(ChainMethod):
    """A kernel without overlap after a BCOP kernel: H has as many taps as the stride, and the factors make the rest.

    With stride s and dilation d, windows of p = min(k, s / gcd(s, d)) taps do not overlap, so an orthogonal matrix
    (rows, p cols) is an orthogonal convolution H, as in RKO; k - p factors on each axis come before it, see
    `ProjectorChain`. With stride 1 this is BCOP.

    Guarantee: norm at most 1 as stored, for every padding (zero, circular), stride, dilation, group and size, whatever
    the free numbers are. Isometries, if H and all R have full rank, are (p the product over axes)
      - rows <= p cols: circular padding, and no padding;
      - rows >= p cols: kernels that skip no position (k >= s, s and d without common factor), circular padding with all
        windows, and zero padding of the whole kernel on each side.
    With zero padding that keeps the size only windows at the border lose: of a gradient through twenty layers with 16
    channels on 7 x 7 nine tenths are kept after 100 steps of training (docs/benchmarks.md). An orthogonal kernel from
    one channel to one is a shift, which nothing can train: there AOL makes a contraction.
    Cost: `inner` on H and on all R, then a product for each tap before the last, in float64; linear in the taps.
    Gradient: through everything. Reference: Boissin et al. 2025; dilations with a common factor of the stride, the
    inner channels of tall kernels, and the rounding are ours.

    Args:
        inner: Method that makes H and all R orthogonal.
    """

    inner: MatrixMethod = field(default_factory=Bjorck)

    def __str__(self) -> str:
        return f"AOC by {self.inner}"

    def chain(self, geometry: Geometry) -> ProjectorChain:
        return chain_of(geometry, periods(geometry)[0])

    def promise(self, geometry: Geometry) -> Promise:
        return Promise.CONTRACTION if _is_scalar(geometry) else super().promise(geometry)

    def free_shape(self, geometry: Geometry) -> tuple[int, ...]:
        return geometry.shape[1:] if _is_scalar(geometry) else super().free_shape(geometry)

    def __call__(self, raw: Free, geometry: Geometry) -> Blocks:
        return _SCALAR(raw, geometry) if _is_scalar(geometry) else super().__call__(raw, geometry)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        return _SCALAR.inverse(weight, geometry) if _is_scalar(geometry) else super().inverse(weight, geometry)

    def without_drift(self, raw: Free, geometry: Geometry) -> Free:
        return _SCALAR.without_drift(raw, geometry) if _is_scalar(geometry) else super().without_drift(raw, geometry)

    def draw(self, geometry: Geometry) -> Free:
        return _SCALAR.draw(geometry) if _is_scalar(geometry) else super().draw(geometry)

    def norm(self, geometry: Geometry) -> Norm:
        return Auto(failure=0) if _is_scalar(geometry) else super().norm(geometry)


_SCALAR = AOL()


def _is_scalar(geometry: Geometry) -> bool:
    """Whether a kernel with several overlapping taps goes from one channel to one."""
    overlap = math.prod(periods(geometry)[1]) > 1
    return geometry.rows == geometry.cols == 1 and overlap and math.prod(periods(geometry)[0]) == 1
