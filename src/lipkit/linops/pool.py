"""Average pooling whose windows all divide by the same number."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops._base import LinearOperator, Shape
from lipkit.linops._geometry import check_axes, check_fits, windows
from lipkit.linops.conv import Conv


@final
@dataclass(frozen=True, eq=False)
class AvgPool(LinearOperator):
    """Sum over each window, divided by `divisor`, on every channel of (channels, *spatial), padded by zeros.

    This is torch's average pooling when no window is divided by another number than the rest: no padding or
    `count_include_pad=True`, and no window that `ceil_mode` lets overhang. It holds no tensor and works in the dtype of
    its argument. Cost: one convolution with one channel.
    """

    channels: int
    spatial: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    divisor: int

    def __post_init__(self) -> None:
        rank = len(self.spatial)
        if rank not in (1, 2, 3):
            raise ArgumentError(f"AvgPool works on 1, 2 or 3 spatial axes, got spatial shape {self.spatial}.")
        if self.channels < 1:
            raise ArgumentError(f"channels must be at least 1, got {self.channels}.")
        check_axes("spatial", self.spatial, rank, least=1)
        check_axes("kernel", self.kernel, rank, least=1)
        check_axes("stride", self.stride, rank, least=1)
        check_axes("padding", self.padding, rank, least=0)
        check_fits(self._padded, self.kernel)
        if self.divisor == 0:
            raise ArgumentError("The divisor of AvgPool must not be 0; the window size is the usual choice.")

    @property
    def _padded(self) -> Shape:
        return tuple(n + 2 * p for n, p in zip(self.spatial, self.padding, strict=True))

    @property
    def in_shape(self) -> Shape:
        return (self.channels, *self.spatial)

    @property
    def out_shape(self) -> Shape:
        return (self.channels, *map(windows, self._padded, self.kernel, self.stride))

    @property
    def conv(self) -> Conv:
        """The float64 convolution of one channel that the pool applies to each."""
        weight = torch.full((1, 1, *self.kernel), 1 / self.divisor, dtype=torch.float64)
        return Conv(weight, self.spatial, self.stride, tuple((p, p) for p in self.padding), (1,) * len(self.spatial))

    def _apply(self, x: Tensor) -> Tensor:
        # Every channel is an image of one channel, the axes before it are batch axes.
        return self._conv_like(x).apply(x.unsqueeze(2)).squeeze(2)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._conv_like(y).adjoint(y.unsqueeze(2)).squeeze(2)

    def _conv_like(self, x: Tensor) -> Conv:
        return self.conv.to(x.dtype.to_real() if x.is_complex() else x.dtype, x.device)
