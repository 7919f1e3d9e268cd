"""The linear part of a torch module as an operator, over the module's live tensors."""

import math
from functools import singledispatch
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from lipkit.errors import ShapeError, UnsupportedError
from lipkit.linops._base import LinearOperator, Shape
from lipkit.linops._windows import extent
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.elementary import Dense, Index, Permute, Reshape, flat_positions, pad
from lipkit.linops.function import LinearFunction
from lipkit.linops.padding import Padding, Sides
from lipkit.linops.pool import adaptive_avg_pool, avg_pool, target_shape


@runtime_checkable
class HasOperator(Protocol):
    """A module that is affine and knows its operator."""

    def linear_operator(self, in_shape: Shape) -> LinearOperator:
        """x -> module(x) - module(0) for one input of `in_shape`, without batch axis."""
        ...


def of(module: nn.Module, in_shape: Shape) -> LinearOperator:
    """x -> module(x) - module(0) for an affine torch module and one input of `in_shape`, without batch axis.

    The operator holds the module's own tensors: gradients reach them. A parametrized module is read once, here.
    Guarantee: a module whose forward is not the one of torch.nn, or that carries forward hooks, is refused, because
    what it computes cannot be read off its attributes.
    """
    if isinstance(module, LazyModuleMixin):
        raise UnsupportedError(f"{_name(module)} is lazy and has no weights yet; call it once on an input first.")
    if module._forward_hooks or module._forward_pre_hooks:
        raise UnsupportedError(
            f"{_name(module)} has forward hooks, which may change what it computes; remove them "
            f"(torch.nn.utils.parametrizations does without), or wrap the computation in LinearFunction."
        )
    if isinstance(module, HasOperator):
        return module.linear_operator(tuple(in_shape))
    known = next(base for base in type(module).__mro__ if base in _of.registry)
    # The registry answers for every object; a type it does not know is refused there, in its own words.
    for method in ("forward", "_conv_forward") if known is not object else ():
        if method in vars(module) or getattr(type(module), method, None) is not getattr(known, method, None):
            raise UnsupportedError(
                f"{_name(module)} has a {method} of its own; wrap it in LinearFunction if it is linear, "
                f"or use lipkit.lipschitz on the whole model."
            )
    return _of(module, tuple(in_shape))


def _name(module: nn.Module) -> str:
    return type(module).__name__


@singledispatch
def _of(module: nn.Module, in_shape: Shape) -> LinearOperator:
    raise UnsupportedError(
        f"There is no operator for {_name(module)} on shape {in_shape}; wrap it in LinearFunction if it is linear, "
        f"or use lipkit.lipschitz on the whole model."
    )


@_of.register(nn.Linear)
def _linear(module: nn.Linear, in_shape: Shape) -> LinearOperator:
    weight: Tensor = module.weight
    if in_shape[-1:] != (weight.shape[1],):
        raise ShapeError(f"{_name(module)} expects (..., {weight.shape[1]}), got in_shape {in_shape}.")
    if len(in_shape) == 1:
        return Dense(weight)
    # The same matrix at every position is a convolution with one tap.
    count, (outputs, inputs) = math.prod(in_shape[:-1]), weight.shape
    conv = Conv(weight[:, :, None], (count,), (1,), ((0, 0),), (1,))
    before = Permute((count, inputs), (1, 0)) @ Reshape(in_shape, (count, inputs))
    after = Reshape((count, outputs), (*in_shape[:-1], outputs)) @ Permute((outputs, count), (1, 0))
    return after @ conv @ before


@_of.register(nn.Conv1d)
@_of.register(nn.Conv2d)
@_of.register(nn.Conv3d)
def _conv(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, in_shape: Shape) -> LinearOperator:
    spatial = _spatial(module, in_shape, module.in_channels, len(module.kernel_size))
    if module.padding == "same":
        spare = [extent(k, d) - 1 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        sides = tuple((total // 2, total - total // 2) for total in spare)
    elif module.padding == "valid":
        sides = ((0, 0),) * len(spatial)
    else:
        sides = tuple((int(p), int(p)) for p in module.padding)
    mode = Padding(module.padding_mode)
    return Conv(module.weight, spatial, module.stride, sides, module.dilation, module.groups, mode)


@_of.register(nn.ConvTranspose1d)
@_of.register(nn.ConvTranspose2d)
@_of.register(nn.ConvTranspose3d)
def _conv_transpose(
    module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, in_shape: Shape
) -> LinearOperator:
    spatial = _spatial(module, in_shape, module.in_channels, len(module.kernel_size))
    padding = tuple(int(p) for p in module.padding)
    return ConvTranspose(
        module.weight, spatial, module.stride, padding, module.output_padding, module.dilation, module.groups
    )


@_of.register(nn.BatchNorm1d)
@_of.register(nn.BatchNorm2d)
@_of.register(nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, in_shape: Shape) -> LinearOperator:
    if module.running_var is None:
        raise UnsupportedError(
            f"{_name(module)} with track_running_stats=False normalises by the batch, so it is not linear; track them."
        )
    _refuse_training(module)
    ranks = (1, 2) if isinstance(module, nn.BatchNorm1d) else (3,) if isinstance(module, nn.BatchNorm2d) else (4,)
    if len(in_shape) not in ranks:
        raise ShapeError(f"{_name(module)} expects {' or '.join(map(str, ranks))} axes, got in_shape {in_shape}.")
    return BatchNorm(module.weight if module.affine else None, module.running_var, module.eps, in_shape)


for _kind in (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d):
    _of.register(_kind, avg_pool)
for _kind in (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d):
    _of.register(_kind, adaptive_avg_pool)


@_of.register(nn.Identity)
def _identity(_: nn.Identity, in_shape: Shape) -> LinearOperator:
    return Reshape(in_shape, in_shape)


@_of.register(nn.Dropout)
@_of.register(nn.Dropout1d)
@_of.register(nn.Dropout2d)
@_of.register(nn.Dropout3d)
@_of.register(nn.AlphaDropout)
@_of.register(nn.FeatureAlphaDropout)
def _dropout(module: nn.Module, in_shape: Shape) -> LinearOperator:
    _refuse_training(module)
    return Reshape(in_shape, in_shape)


@_of.register(nn.Flatten)
@_of.register(nn.Unflatten)
def _flatten(module: nn.Flatten | nn.Unflatten, in_shape: Shape) -> LinearOperator:
    return Reshape(in_shape, target_shape(module, in_shape))


_PADS = {
    Padding.ZEROS: (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    Padding.CIRCULAR: (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
    Padding.REFLECT: (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    Padding.REPLICATE: (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
}
for _mode, _kinds in _PADS.items():
    for _kind in _kinds:
        _of.register(_kind, lambda module, shape, mode=_mode: pad(shape, _pairs(module.padding), mode))


@_of.register(nn.PixelShuffle)
@_of.register(nn.PixelUnshuffle)
@_of.register(nn.ChannelShuffle)
def _shuffle(module: nn.Module, in_shape: Shape) -> LinearOperator:
    return _moving(module, in_shape)


@_of.register(nn.Upsample)
def _upsample(module: nn.Upsample, in_shape: Shape) -> LinearOperator:
    if module.mode in ("nearest", "nearest-exact"):
        return _moving(module, in_shape)
    return LinearFunction(module, in_shape, target_shape(module, in_shape))


@_of.register(nn.Sequential)
def _sequential(module: nn.Sequential, in_shape: Shape) -> LinearOperator:
    op: LinearOperator | None = None
    for child in module:
        op = of(child, in_shape) if op is None else of(child, op.out_shape) @ op
    return op or Reshape(in_shape, in_shape)


def _moving(module: nn.Module, in_shape: Shape) -> LinearOperator:
    """The gather done by a module that only moves entries: it is shown the position of every entry."""
    _ = target_shape(module, in_shape)
    # Positions up to 2^53 are exact in float64, and these modules copy.
    return Index(module(flat_positions(in_shape).to(torch.float64)[None])[0].long(), in_shape)


def _refuse_training(module: nn.Module) -> None:
    if module.training:
        raise UnsupportedError(
            f"{_name(module)} in training mode is not a linear map; call .eval() on the model first."
        )


def _spatial(module: nn.Module, in_shape: Shape, channels: int, rank: int) -> Shape:
    if len(in_shape) != rank + 1 or in_shape[0] != channels:
        raise ShapeError(
            f"{_name(module)} expects {channels} channels and {rank} spatial axes, got in_shape {in_shape}."
        )
    return in_shape[1:]


def _pairs(widths: tuple[int, ...]) -> Sides:
    """torch lists the last axis first."""
    pairs = [(widths[k], widths[k + 1]) for k in range(0, len(widths), 2)]
    return tuple(reversed(pairs))
