"""Normalisations, as layers that center and scale by at most one: none divides by a small deviation."""

from typing import Any

import torch
from torch import Tensor, nn

from lipkit.nn.conversion.converted_layers import ChannelScale, split_largest
from lipkit.nn.conversion.replacement import Refusal, Replacement
from lipkit.nn.conversion.transfer import ConversionStart
from lipkit.nn.normalization.batch_norm import BatchCentering
from lipkit.nn.normalization.layer_norm import GroupNorm, LayerNorm, RMSNorm

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Signals in a twin have entries of a tenth to a hundredth of one: at the start they are divided by little more than 1.
_EPS = 1.0


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
    found = LayerNorm(module.normalized_shape, _EPS, module.elementwise_affine, module.bias is not None)
    return _started(found, module, scale, like, "LayerNorm of constant 1, centered and divided by at least 1")


def _group_norm(module: nn.GroupNorm, scale: float, like: Tensor | None) -> Replacement:
    found = GroupNorm(module.num_groups, module.num_channels, _EPS, module.affine)
    return _started(found, module, scale, like, "GroupNorm of constant 1, centered and divided by at least 1")


def _rms_norm(module: nn.RMSNorm, scale: float, like: Tensor | None) -> Replacement:
    found = RMSNorm(module.normalized_shape, _EPS, module.elementwise_affine)
    return _started(found, module, scale, like, "RMSNorm of constant 1, divided by at least 1")


def _started(
    found: LayerNorm | GroupNorm | RMSNorm, module: Any, scale: float, like: Tensor | None, words: str
) -> Replacement:
    """The substitute with the weights and the bias of the original, divided by the largest weight."""
    place = like if module.weight is None else module.weight
    found = found if place is None else found.to(place)
    if found.weight is not None and module.weight is not None:
        start, largest = split_largest(module.weight)
        with torch.no_grad():
            found.weight.copy_(start)
            if found.bias is not None:
                found.bias.copy_(module.bias / largest)
    # These forget the size of their input: what they give is compared with one.
    return Replacement(found, words, 1 / scale)
