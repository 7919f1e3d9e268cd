"""Average pooling whose windows all divide by the same number."""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape
from lipkit.linops._windows import check_axes, check_fits, windows
from lipkit.linops.conv import Conv
from lipkit.linops.function import LinearFunction

AnyAvgPool = nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d
AnyAdaptiveAvgPool = nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d


def avg_pool(module: AnyAvgPool, in_shape: Shape) -> LinearOperator:
    """Average pooling of (channels, *spatial); unequal divisors need a `LinearFunction`."""
    _check_rank(module, in_shape)
    target = target_shape(module, in_shape)
    channels, *spatial = in_shape
    rank = len(spatial)
    kernel, stride, padding = (_per_axis(v, rank) for v in (module.kernel_size, module.stride, module.padding))
    override = None if isinstance(module, nn.AvgPool1d) else module.divisor_override
    padded = [n + 2 * p for n, p in zip(spatial, padding, strict=True)]
    whole = tuple(map(windows, padded, kernel, stride)) == target[1:]
    even = override is not None or module.count_include_pad or not any(padding)
    if whole and even:
        return AvgPool(channels, tuple(spatial), kernel, stride, padding, override or math.prod(kernel))
    return LinearFunction(module, in_shape, target)


def adaptive_avg_pool(module: AnyAdaptiveAvgPool, in_shape: Shape) -> LinearOperator:
    """Adaptive average pooling: windows of one size if the output divides the input, a `LinearFunction` otherwise."""
    _check_rank(module, in_shape)
    target = target_shape(module, in_shape)
    channels, *spatial = in_shape
    if any(n % m for n, m in zip(spatial, target[1:], strict=True)):
        return LinearFunction(module, in_shape, target)
    kernel = tuple(n // m for n, m in zip(spatial, target[1:], strict=True))
    return AvgPool(channels, tuple(spatial), kernel, kernel, (0,) * len(kernel), math.prod(kernel))


def _check_rank(module: AnyAvgPool | AnyAdaptiveAvgPool, in_shape: Shape) -> None:
    match module:
        case nn.AvgPool1d() | nn.AdaptiveAvgPool1d():
            rank = 1
        case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            rank = 2
        case _:
            rank = 3
    if len(in_shape) != rank + 1:
        raise ShapeError(f"{type(module).__name__} expects channels and {rank} spatial axes, got in_shape {in_shape}.")


def _per_axis(value: int | tuple[int, ...], rank: int) -> Shape:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def target_shape(module: nn.Module, in_shape: Shape) -> Shape:
    """The shape a module without tensors gives one input of `in_shape`."""
    try:
        # A batch of two: a module that mixes the batch axis into the others is found out.
        result = module(torch.empty((2, *in_shape), device="meta")).shape
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShapeError(f"{type(module).__name__} does not accept inputs of shape {in_shape}: {error}") from error
    if len(result) == 0 or result[0] != 2:
        raise ArgumentError(
            f"{type(module).__name__} on (batch, *{in_shape}) touches the batch axis; leave axis 0 alone."
        )
    return tuple(result[1:])


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
