"""Almost-orthogonal layers: each input channel divided by the root of what its correlations add up to."""

from dataclasses import dataclass
from typing import final

from lipkit.nn.geometry import Geometry
from lipkit.nn.methods._base import Blocks, Method, Promise
from lipkit.nn.methods.rescale import Side, rescaled, unscaled


@final
@dataclass(frozen=True)
class AOL(Method):
    """W R with R_i = (sum_{j, shifts} |M_ij|)^(-1/2), M the Gram matrix W'W or the filter Gram of a kernel.

    M_ij at a shift is the correlation of input channels i and j, summed over outputs. W'W <= R^(-2) because a matrix is
    dominated by the sums of its absolute rows. An orthogonal weight stays what it is, and training tends to weights
    whose channels correlate little; of a random kernel little is left (docs/benchmarks.md). Rescale(1) is the same.

    Guarantee: norm at most 1 as stored, for zero and circular padding of every size, strides (through phases),
    dilation, groups and transposed convolutions. Cost: n^2 m taps^2 / 2 products. Gradient: exact.
    Reference: Prach and Lampert 2022; the convolution as printed by Delattre 2025 has a wrong index and exponent
    (docs/errata.md). Factors for each phase of a stride, and the rounding, are ours.
    """

    side: Side = Side.COLUMNS

    def __str__(self) -> str:
        return "AOL" if self.side is Side.COLUMNS else f"AOL on the {self.side.value}"

    def promise(self, geometry: Geometry) -> Promise:
        return Promise.CONTRACTION

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        return rescaled(raw, geometry, 1, self.side)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Blocks:
        return unscaled(weight, geometry, 1, self.side)
