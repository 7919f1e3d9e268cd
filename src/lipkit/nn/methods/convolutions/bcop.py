"""Orthogonal kernels as products of projectors: block convolution orthogonal parametrization."""

from dataclasses import dataclass, field
from typing import final

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.convolutions._base import ChainMethod, chain_of
from lipkit.nn.methods.convolutions.projector_chain import ProjectorChain


@final
@dataclass(frozen=True)
class BCOP(ChainMethod):
    """K(z) = H F_1 F_2 ..., F = I - P + P z, an orthogonal matrix and a projector for each tap beyond the first.

    Factors take turns between the axes: k - 1 of them on an axis with k taps. P = R'R with R of half the channels; see
    `ProjectorChain` for the proof. Rows and columns that differ are cut from the larger side.

    Guarantee: norm at most 1 as stored, for every padding (zero, circular), stride, dilation, group and size, whatever
    the free numbers are. Isometries, if H and all R have full rank, are
      - rows <= cols: circular padding with any stride, and no padding;
      - rows >= cols: stride 1, circular padding with all windows, and zero padding of the whole kernel on each side.
    With zero padding that keeps the size only windows at the border lose. A stride drops outputs: use AOC with rows >
    cols and a stride.
    Cost: `inner` on H and on all R, then a product for each tap before the last, in float64; linear in the taps.
    Gradient: through everything. Reference: Li et al. 2019; even kernels, other dimensions, and ranks that add up
    to the number of channels are ours.

    Args:
        inner: Method that makes H and all R orthogonal.
    """

    inner: MatrixMethod = field(default_factory=Bjorck)

    def __str__(self) -> str:
        return f"BCOP by {self.inner}"

    def chain(self, geometry: Geometry) -> ProjectorChain:
        return chain_of(geometry, (1,) * len(geometry.taps))
