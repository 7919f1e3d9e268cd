"""Normalisations, as layers that center and scale by at most one: none divides by a deviation."""

from typing import Any

import torch
from torch import Tensor, nn

from lipkit.nn.conversion.converted_layers import ChannelScale, GroupCentering, split_largest
from lipkit.nn.conversion.replacement import Refusal, Replacement
from lipkit.nn.conversion.transfer import ConversionStart
from lipkit.nn.layers.normalization import BatchCentering, CenterNorm

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def replace_normalization(
    module: nn.Module, scale: float, start: ConversionStart, like: Tensor | None
) -> Replacement | None:
    """The replacement of a normalisation; None for any other module.

    Batch normalisation in evaluation is a fixed scale, which is kept where weights are. Layer, group and root mean
    square normalisation forget the size of their input: what they give is compared with one.
    """
    if isinstance(module, _BATCH_NORM):
        return _batch_norm(module, scale, start)
    if isinstance(module, nn.LayerNorm):
        return _layer_norm(module, scale, like)
    if isinstance(module, nn.GroupNorm):
        return _group_norm(module, scale, like)
    if isinstance(module, nn.RMSNorm):
        return _rms_norm(module, scale, like)
    return None


def _batch_norm(module: Any, scale: float, start: ConversionStart) -> Replacement:
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


def _layer_norm(module: nn.LayerNorm, scale: float, like: Tensor | None) -> Replacement:
    if len(module.normalized_shape) != 1:
        raise Refusal("use nn.LayerNorm over the last axis, or lipkit.nn.LayerCentering")
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


def _group_norm(module: nn.GroupNorm, scale: float, like: Tensor | None) -> Replacement:
    ones = torch.ones(module.num_channels) if like is None else like.new_ones(module.num_channels)
    # Without an affine part the channels still get factors, which training may lower.
    factors, largest = split_largest(module.weight if module.affine else ones)
    bias = module.bias / largest if module.affine else torch.zeros_like(ones)
    found = nn.Sequential(GroupCentering(module.num_groups), ChannelScale(factors, 1, bias))
    return Replacement(found, "GroupCentering and ChannelScale, not divided by the deviation", 1 / scale)


def _rms_norm(module: nn.RMSNorm, scale: float, like: Tensor | None) -> Replacement:
    if len(module.normalized_shape) != 1:
        raise Refusal("use nn.RMSNorm over the last axis")
    (features,) = module.normalized_shape
    ones = torch.ones(features) if like is None else like.new_ones(features)
    factors, _ = split_largest(module.weight if isinstance(module.weight, Tensor) else ones)
    return Replacement(ChannelScale(factors, -1), "ChannelScale, not divided by the root mean square", 1 / scale)
