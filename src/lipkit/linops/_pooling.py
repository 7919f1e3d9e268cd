"""torch's average pooling modules as operators: uniform windows as `AvgPool`, all others by autograd."""

import math

import torch
from torch import nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape
from lipkit.linops._geometry import windows
from lipkit.linops.function import Function
from lipkit.linops.pool import AvgPool

AnyAvgPool = nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d
AnyAdaptiveAvgPool = nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d


def avg_pool(module: AnyAvgPool, in_shape: Shape) -> LinearOperator:
    """Average pooling of (channels, *spatial); a window that is divided by less than the others needs a `Function`."""
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
    return Function(module, in_shape, target)


def adaptive_avg_pool(module: AnyAdaptiveAvgPool, in_shape: Shape) -> LinearOperator:
    """Adaptive average pooling: windows of one size if the output divides the input, a `Function` otherwise."""
    _check_rank(module, in_shape)
    target = target_shape(module, in_shape)
    channels, *spatial = in_shape
    if any(n % m for n, m in zip(spatial, target[1:], strict=True)):
        return Function(module, in_shape, target)
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
