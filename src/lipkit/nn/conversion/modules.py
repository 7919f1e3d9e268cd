"""Replacements: for each kind of module, the layer that takes its place in a twin."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import LipkitError
from lipkit.nn.activations.prelu import PReLU
from lipkit.nn.activations.rescaled import GELU, Mish, Rescaled, SiLU, Softplus
from lipkit.nn.attention.embedding import Embedding
from lipkit.nn.combinators.residual import ConvexResidual
from lipkit.nn.conversion.attention_modules import attention_twin
from lipkit.nn.conversion.converted_functions import Clamp, Sharpened
from lipkit.nn.conversion.functions import BUILDERS
from lipkit.nn.conversion.normalizations import replace_normalization
from lipkit.nn.conversion.replacement import Choices, Refusal, Replacement
from lipkit.nn.conversion.transfer import ConversionStart, constrained_twin, take_bias, take_weight
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import Contraction
from lipkit.nn.core.slopes import computes_as, switches_with_a_jump
from lipkit.nn.layers.pooling import (
    GlobalAvgPool,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    ScaledAvgPool1d,
    ScaledAvgPool2d,
    ScaledAvgPool3d,
)

# Smooth rectifiers start this much sharper: entries of signals in a twin are about a tenth to a hundredth of one.
_SHARP = 50.0
_SMOOTH: dict[type[nn.Module], Callable[[Any], Contraction]] = {
    nn.GELU: lambda module: GELU(tanh=module.approximate == "tanh"),
    nn.SiLU: lambda _: SiLU(),
    nn.Mish: lambda _: Mish(),
}
# nn.TransformerEncoderLayer keeps an activation that was named as the function itself.
_FUNCTIONS: dict[object, type[nn.Module]] = {functional.relu: nn.ReLU, functional.gelu: nn.GELU}
TRANSFORMERS = (nn.TransformerEncoderLayer, nn.TransformerEncoder)
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_MAX: dict[type[nn.Module], type[Any]] = {nn.MaxPool1d: MaxPool1d, nn.MaxPool2d: MaxPool2d, nn.MaxPool3d: MaxPool3d}
_AVG: dict[type[nn.Module], type[Any]] = {
    nn.AvgPool1d: ScaledAvgPool1d,
    nn.AvgPool2d: ScaledAvgPool2d,
    nn.AvgPool3d: ScaledAvgPool3d,
}
_GLOBAL: dict[type[nn.Module], int] = {nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3}


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
    norm = replace_normalization(module, scale, start, like)
    if norm is not None:
        return norm
    if type(module) is nn.Embedding:
        return _replace_embedding(module)
    if type(module) is nn.TransformerEncoderLayer:
        return _replace_transformer_layer(module, choices, like)
    if type(module) is nn.TransformerEncoder:
        return _replace_transformer(module, choices, like)
    if isinstance(module, DROPOUT):
        return Replacement(None, "random in training: the constant is that of evaluation")
    if isinstance(module, nn.PReLU):
        return _replace_prelu(module)
    if isinstance(module, nn.Softplus) and module.beta != 0 and switches_with_a_jump(module):
        return Replacement(Softplus(module.beta), "Softplus, without the switch to x, where it jumps")
    if isinstance(module, Clamp):
        limits = [None if limit is None else limit * scale for limit in (module.low, module.high)]
        return Replacement(Clamp(*limits), f"constant 1, limits times {scale:.3g}")
    return _replace_smooth(module, scale, start, like) or _replace_sizes(module) or _replace_known(module)


def _replace_embedding(module: nn.Embedding) -> Replacement:
    if module.max_norm is not None or module.sparse:
        raise Refusal("build nn.Embedding without max_norm and sparse")
    weight = module.weight
    place = {"device": weight.device, "dtype": weight.dtype}
    found = Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx, **place)
    with torch.no_grad():
        largest = float(torch.linalg.vector_norm(weight.to(torch.float64), dim=1).max())
        ratio = found.max_norm / largest if largest > 0 else 1.0
        found.weight.copy_(weight * ratio)
    return Replacement(found, f"Embedding, times {ratio:.3g}: the constant is one in the root of changed tokens", ratio)


def _replace_transformer_layer(
    module: nn.TransformerEncoderLayer, choices: Choices, like: Tensor | None
) -> Replacement:
    """x mixed with its attention, then with two dense layers; normalised before or after, as in the original."""

    def part(old: nn.Module) -> nn.Module:
        return _replacement(old, 1.0, choices, like).module or old

    if not isinstance(module.activation, nn.Module) and module.activation not in _FUNCTIONS:
        raise Refusal("give nn.TransformerEncoderLayer the activation 'relu' or 'gelu', or a module")
    bend = module.activation if isinstance(module.activation, nn.Module) else _FUNCTIONS[module.activation]()
    dense = (part(module.linear1), part(bend), part(module.linear2))
    norms = part(module.norm1), part(module.norm2)
    attention = attention_twin(module.self_attn, False, choices)
    if module.norm_first:
        first, second = nn.Sequential(norms[0], attention), nn.Sequential(norms[1], *dense)
        found = nn.Sequential(ConvexResidual(first), ConvexResidual(second))
    else:
        found = nn.Sequential(ConvexResidual(attention), norms[0], ConvexResidual(nn.Sequential(*dense)), norms[1])
    return Replacement(
        found, f"L2Attention and dense layers, each in a ConvexResidual, without dropout, {choices.start}"
    )


def _replace_transformer(module: nn.TransformerEncoder, choices: Choices, like: Tensor | None) -> Replacement:
    parts = [*module.layers, *([] if module.norm is None else [module.norm])]
    found = [_replacement(part, 1.0, choices, like) for part in parts]
    if any(one.module is None for one in found):
        raise Refusal("build nn.TransformerEncoder from nn.TransformerEncoderLayer and a normalisation")
    return Replacement(
        nn.Sequential(*(one.module for one in found if one.module is not None)), "a chain: " + found[0].words
    )


def _replace_known(module: nn.Module) -> Replacement:
    gain = gain_of(module)
    if gain <= 1:
        return Replacement(None, f"constant {gain:.4g}")
    return Replacement(Rescaled(module), f"divided by its constant, {gain:.4g}", 1 / gain)


def _replace_smooth(module: nn.Module, scale: float, start: ConversionStart, like: Tensor | None) -> Replacement | None:
    """Smooth rectifiers: divided by their largest slope, and as sharp for the twin's signals as for the original's."""
    smooth = next((build(module) for kind, build in _SMOOTH.items() if type(module) is kind), None)
    if smooth is None:
        return None
    gain = gain_of(module)
    sharpness = 1 / scale if start is ConversionStart.WEIGHTS else _SHARP
    found = Sharpened(smooth, sharpness)
    words = f"divided by its largest slope, {gain:.4g}, sharper by {sharpness:.3g}"
    return Replacement(found if like is None else found.to(like), words, 1 / gain)


def _replace_sizes(module: Any) -> Replacement | None:
    """Pooling, and its reverse."""
    if computes_as(module, nn.Upsample):
        found = BUILDERS[functional.interpolate](None, module.size, module.scale_factor, module.mode)
        if found is not None:
            return Replacement(found, "NearestUpsample, divided by its constant")
        raise Refusal("use mode='nearest' with whole scale factors and without a size")
    return _replace_pooling(module)


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


def _replace_prelu(module: nn.PReLU) -> Replacement:
    found = PReLU(module.num_parameters).to(module.weight)
    with torch.no_grad():
        # Scaled to largest slope 1 where a learnt slope exceeds it.
        found.raw.copy_((module.weight / module.weight.abs().max().clamp(min=1)).asin())
    return Replacement(found, "PReLU with slopes in [-1, 1]")
