"""Convolutions (cross-correlations, as torch computes them) in one, two and three dimensions."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Inexact
from torch import Tensor
from torch.nn import functional

from lipkit.linops._base import LinearOperator, Shape, promote
from lipkit.linops._windows import check_axes, check_fits, check_groups, check_rank, extent, windows
from lipkit.linops.padding import Padding, Sides, check_sides, pad, pad_adjoint, padded_shape

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
CONV_TRANSPOSE = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


@final
@dataclass(frozen=True, eq=False)
class Conv(LinearOperator):
    """The convolution of an image (c_in, *spatial), as torch.nn.ConvNd computes it, without bias.

        y[o, i] = sum_{c, t} weight[o, c, t] x~[c, stride i + dilation t],   x~ = x padded by `padding` in `mode`,

    where c runs over the channels of the group of o. The rank is that of `weight`, less two.
    `padding` holds one pair (left, right) for each axis.
    Cost: one convolution; the adjoint is one transposed convolution.
    """

    weight: Inexact[Tensor, "c_out c_in_per_group *kernel"]
    spatial: Shape
    stride: Shape
    padding: Sides
    dilation: Shape
    groups: int = 1
    mode: Padding = Padding.ZEROS

    def __post_init__(self) -> None:
        rank = check_rank(tuple(self.weight.shape))
        check_axes("spatial", self.spatial, rank, least=1)
        check_axes("stride", self.stride, rank, least=1)
        check_axes("dilation", self.dilation, rank, least=1)
        check_groups(self.groups, self.weight.shape[0], "output")
        check_sides(self.spatial, self.padding, self.mode)
        check_fits(self.padded, self.extents)

    @property
    def kernel(self) -> Shape:
        """Shape of the kernel, undilated."""
        return tuple(self.weight.shape[2:])

    @property
    def extents(self) -> Shape:
        """Length the dilated kernel covers on each axis."""
        return tuple(map(extent, self.kernel, self.dilation))

    @property
    def padded(self) -> Shape:
        """Spatial shape of the padded input."""
        return padded_shape(self.spatial, self.padding)

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[1] * self.groups, *self.spatial)

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0], *map(windows, self.padded, self.extents, self.stride))

    def _split(self) -> tuple[Shape, Sides]:
        """The padding torch's convolution does itself, and the one that must be done before."""
        none = ((0, 0),) * len(self.spatial)
        if self.mode is Padding.ZEROS and all(left == right for left, right in self.padding):
            return tuple(left for left, _ in self.padding), none
        return (0,) * len(self.spatial), self.padding

    def _apply(self, x: Tensor) -> Tensor:
        weight, x = promote(self.weight, x)
        inside, before = self._split()
        x = pad(x, before, self.mode)
        return CONV[len(inside)](x, weight, None, self.stride, inside, self.dilation, self.groups)

    def _adjoint(self, y: Tensor) -> Tensor:
        weight, y = promote(self.weight, y)
        inside, before = self._split()
        # The entries behind the last window; fewer than the stride, so torch always accepts them.
        rest = tuple((n - e) % s for n, e, s in zip(self.padded, self.extents, self.stride, strict=True))
        x = CONV_TRANSPOSE[len(inside)](y, weight.conj(), None, self.stride, inside, rest, self.groups, self.dilation)
        return pad_adjoint(x, before, self.mode)
