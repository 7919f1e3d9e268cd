"""Transposed convolutions in one, two and three dimensions."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape, promote
from lipkit.linops._windows import check_axes, check_groups, check_rank, extent
from lipkit.linops.conv import CONV, CONV_TRANSPOSE


@final
@dataclass(frozen=True, eq=False)
class ConvTranspose(LinearOperator):
    """The transposed convolution of an image (c_in, *spatial), as torch.nn.ConvTransposeNd computes it, without bias.

        y[o, stride i + dilation t - padding] += weight[c, o, t] x[c, i],
        size = stride (n - 1) + dilation (k - 1) + 1 + output_padding - 2 padding.

    Padding is by zeros, the only mode torch has. Cost: one transposed convolution; the adjoint is one convolution.
    """

    weight: Inexact[Tensor, "c_in c_out_per_group *kernel"]
    spatial: Shape
    stride: Shape
    padding: Shape
    output_padding: Shape
    dilation: Shape
    groups: int = 1

    def __post_init__(self) -> None:
        rank = check_rank(tuple(self.weight.shape))
        check_axes("spatial", self.spatial, rank, least=1)
        check_axes("stride", self.stride, rank, least=1)
        check_axes("padding", self.padding, rank, least=0)
        check_axes("output_padding", self.output_padding, rank, least=0)
        check_axes("dilation", self.dilation, rank, least=1)
        check_groups(self.groups, self.weight.shape[0], "input")
        if any(o >= max(s, d) for o, s, d in zip(self.output_padding, self.stride, self.dilation, strict=True)):
            raise ArgumentError(
                f"output_padding must be smaller than the stride {self.stride} or the dilation {self.dilation} "
                f"on every axis, got {self.output_padding}."
            )
        if any(n < 1 for n in self.out_shape[1:]):
            raise ShapeError(
                f"The output would have spatial shape {self.out_shape[1:]}; lower the padding {self.padding}."
            )

    @property
    def kernel(self) -> Shape:
        """Shape of the kernel, undilated."""
        return tuple(self.weight.shape[2:])

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[0], *self.spatial)

    @property
    def out_shape(self) -> Shape:
        extents = map(extent, self.kernel, self.dilation)
        rows = zip(self.spatial, self.stride, self.padding, self.output_padding, extents, strict=True)
        return (self.weight.shape[1] * self.groups, *(s * (n - 1) + e + o - 2 * p for n, s, p, o, e in rows))

    def _apply(self, x: Tensor) -> Tensor:
        weight, x = promote(self.weight, x)
        transposed = CONV_TRANSPOSE[len(self.spatial)]
        return transposed(x, weight, None, self.stride, self.padding, self.output_padding, self.groups, self.dilation)

    def _adjoint(self, y: Tensor) -> Tensor:
        weight, y = promote(self.weight, y)
        x = CONV[len(self.spatial)](y, weight.conj(), None, self.stride, self.padding, self.dilation, self.groups)
        # An output padding of a stride or more makes room for windows that no input stands behind.
        for axis, size in enumerate(self.spatial, start=2):
            x = x.narrow(axis, 0, size)
        return x
