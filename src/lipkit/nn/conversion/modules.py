"""Replacements: for each kind of module, the layer that takes its place in a twin."""

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.errors import LipkitError
from lipkit.nn.activations.prelu import PReLU
from lipkit.nn.activations.rescaled import GELU, Mish, Rescaled, SiLU, Softplus
from lipkit.nn.conversion.converted_layers import ChannelScale, split_largest
from lipkit.nn.conversion.transfer import ConversionStart, constrained_twin, take_bias, take_weight
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.slopes import switches_with_a_jump
from lipkit.nn.layers.normalization import BatchCentering, CenterNorm
from lipkit.nn.layers.pooling import (
    GlobalAvgPool,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    ScaledAvgPool1d,
    ScaledAvgPool2d,
    ScaledAvgPool3d,
)
from lipkit.nn.methods._base import WeightMethod

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_MAX: dict[type[nn.Module], type[Any]] = {nn.MaxPool1d: MaxPool1d, nn.MaxPool2d: MaxPool2d, nn.MaxPool3d: MaxPool3d}
_AVG: dict[type[nn.Module], type[Any]] = {
    nn.AvgPool1d: ScaledAvgPool1d,
    nn.AvgPool2d: ScaledAvgPool2d,
    nn.AvgPool3d: ScaledAvgPool3d,
}
_GLOBAL: dict[type[nn.Module], int] = {nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3}


@final
@dataclass(frozen=True)
class Replacement:
    """The layer in the place of a module, a description of it, and how much smaller its output is for an equal input.

    `module` is None where the original stays.
    """

    module: nn.Module | None
    words: str
    ratio: float = 1.0


@final
class Refusal(Exception):
    """Nothing can stand in the place of an operation; the message says what to do."""


@final
@dataclass(frozen=True)
class Choices:
    """The methods that constrain layers, and the weights they start from."""

    linear: WeightMethod
    conv: WeightMethod
    start: ConversionStart


def replacement(module: nn.Module, scale: float, choices: Choices, like: Tensor | None) -> Replacement:
    """The replacement of a module.

    Args:
        scale: how its input in the twin compares with that in the original model.
        like: a tensor of the type and on the device that a part gets for which the module has no tensor.
    """
    try:
        return _replacement(module, scale, choices, like)
    except LipkitError as error:
        raise Refusal(str(error)) from error


def _replacement(module: nn.Module, scale: float, choices: Choices, like: Tensor | None) -> Replacement:
    linear, conv, start = choices.linear, choices.conv, choices.start
    twin = constrained_twin(module, linear, conv)
    if twin is not None:
        ratio = take_weight(twin, module, start)
        take_bias(twin, module, scale * ratio if start is ConversionStart.WEIGHTS else 0.0)
        method = linear if isinstance(module, nn.Linear) else conv
        how = f"weights times {ratio:.3g}" if start is ConversionStart.WEIGHTS else str(start)
        return Replacement(twin, f"{type(module).__name__} by {method}, {how}", ratio)
    if isinstance(module, _BATCH_NORM):
        return _replace_batch_norm(module, scale, start)
    if isinstance(module, nn.LayerNorm):
        return _replace_layer_norm(module, scale, like)
    if isinstance(module, DROPOUT):
        return Replacement(None, "random in training: the constant is that of evaluation")
    if isinstance(module, nn.PReLU):
        return _replace_prelu(module)
    if isinstance(module, nn.Softplus) and module.beta != 0 and switches_with_a_jump(module):
        return Replacement(Softplus(module.beta), "Softplus, without the switch to x, where it jumps")
    smooth = _smooth_twin(module)
    if smooth is not None:
        gain = gain_of(module)
        return Replacement(smooth, f"divided by its largest slope, {gain:.4g}", 1 / gain)
    return _replace_pooling(module) or _replace_known(module)


def _replace_known(module: nn.Module) -> Replacement:
    gain = gain_of(module)
    if gain <= 1:
        return Replacement(None, f"constant {gain:.4g}")
    return Replacement(Rescaled(module), f"divided by its constant, {gain:.4g}", 1 / gain)


def _smooth_twin(module: nn.Module) -> nn.Module | None:
    if type(module) is nn.GELU:
        return GELU(tanh=module.approximate == "tanh")
    return SiLU() if type(module) is nn.SiLU else Mish() if type(module) is nn.Mish else None


def _replace_pooling(module: Any) -> Replacement | None:
    largest = _MAX.get(type(module))
    if largest is not None and not module.return_indices:
        sizes = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
        found = largest(*sizes)
        constant = math.sqrt(found.cover)
        return Replacement(found, f"{largest.__name__}, divided by its constant {constant:.4g}", 1 / constant)
    mean = _AVG.get(type(module))
    plain = mean is not None and not module.ceil_mode and (module.count_include_pad or not _has_padding(module.padding))
    if mean is not None and plain and getattr(module, "divisor_override", None) is None:
        found = mean(module.kernel_size, module.stride, module.padding)
        return Replacement(found, f"{mean.__name__}, times {found.factor:.4g}", found.factor)
    dims = _GLOBAL.get(type(module))
    size = getattr(module, "output_size", None)
    if dims is not None and all(n == 1 for n in (size if isinstance(size, tuple) else (size,))):
        # The factor sqrt(positions) is not known before the size of the image is.
        return Replacement(GlobalAvgPool(dims), "GlobalAvgPool, times sqrt(positions)")
    return None


def _has_padding(padding: int | tuple[int, ...]) -> bool:
    return any(padding) if isinstance(padding, tuple) else padding != 0


def _replace_batch_norm(module: Any, scale: float, start: ConversionStart) -> Replacement:
    if module.running_mean is None:
        raise Refusal("set track_running_stats=True: statistics of the batch are no function of one sample")
    weight = torch.ones_like(module.running_var) if module.weight is None else module.weight
    centering = BatchCentering(module.num_features, module.momentum or 0.1).to(weight)
    if start is not ConversionStart.WEIGHTS:
        words = "BatchCentering and ChannelScale, statistics anew"
        return Replacement(nn.Sequential(centering, ChannelScale(torch.ones_like(weight))), words)
    factors, largest = split_largest(weight / (module.running_var + module.eps).sqrt())
    scaling = ChannelScale(factors)
    after = scale / largest
    with torch.no_grad():
        centering.running_mean.copy_(module.running_mean * scale)
        if module.bias is not None:
            # s (x - mean) + beta = s (x - mean + beta / s); a channel without scale keeps no shift.
            shift = module.bias * after / torch.where(factors == 0, 1.0, factors)
            centering.bias.copy_(torch.where(factors.abs() > 1e-6, shift, 0.0))
    words = f"BatchCentering and ChannelScale, times {1 / largest:.3g}"
    return Replacement(nn.Sequential(centering, scaling), words, 1 / largest)


def _replace_layer_norm(module: nn.LayerNorm, scale: float, like: Tensor | None) -> Replacement:
    if len(module.normalized_shape) != 1:
        raise Refusal("use nn.LayerNorm over the last axis, or LayerCentering")
    (features,) = module.normalized_shape
    found = CenterNorm(features)
    found = found if like is None else found.to(like)
    if isinstance(module.weight, Tensor):
        found = found.to(module.weight)
        start, largest = split_largest(module.weight)
        with torch.no_grad():
            found.weight.copy_(start)
            if isinstance(module.bias, Tensor):
                found.bias.copy_(module.bias / largest)
    # Layer normalisation forgets the size of its input: what it gives is compared with one.
    return Replacement(found, "CenterNorm: centered, not divided by the deviation", 1 / scale)


def _replace_prelu(module: nn.PReLU) -> Replacement:
    found = PReLU(module.num_parameters).to(module.weight)
    with torch.no_grad():
        # Scaled to largest slope 1 where a learnt slope exceeds it.
        found.raw.copy_((module.weight / module.weight.abs().max().clamp(min=1)).asin())
    return Replacement(found, "PReLU with slopes in [-1, 1]")
