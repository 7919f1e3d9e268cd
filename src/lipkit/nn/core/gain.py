"""Constants of modules that hold whatever the shape of the input."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from lipkit.errors import UnsupportedError
from lipkit.nn.core.slopes import computes_as, slopes_of
from lipkit.nn.layers.pooling import per_axis, windows_per_entry
from lipkit.rounding.slacks import ROUNDINGS_32

# Modules of torch.nn that are 1-Lipschitz in l2 for every shape, in training and in evaluation; activations are in
# lipkit.nn.core.slopes.
_ONE = (
    *(nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
)
# Their Jacobian is diag(p) - p p', whose rows have absolute sums 2 p_i (1 - p_i).
_HALF = (nn.Softmax, nn.Softmin, nn.Softmax2d)
# The identity in evaluation, which is what a gain is about.
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_AVERAGE = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}
_MAXIMUM = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}
_NORM = {nn.LPPool1d: 1, nn.LPPool2d: 2, nn.LPPool3d: 3}
_GLOBAL = (
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
# A few units in the last place of float64, for roots and quotients.
_UP = 1 + ROUNDINGS_32


@runtime_checkable
class HasGain(Protocol):
    """A module that knows a constant of itself for every shape."""

    @property
    def gain(self) -> float:
        """An upper bound of the l2 constant, for inputs of every shape the module accepts."""
        ...


def gain_of(module: nn.Module) -> float:
    """An upper bound of the l2 constant of a module for every shape: its own, or that of a known module of torch.nn.

    Modules that change with weights or statistics (nn.Linear, nn.BatchNorm, nn.PReLU) are refused: a gain is a promise
    about the module, not about a moment. It is about the module in evaluation: dropout is the identity there, so its
    gain is 1, in training too, where each draw of nn.Dropout(p) is a map of constant up to 1/(1 - p).

    Args:
        module: A layer of lipkit.nn, a known module of torch.nn, or a module with a property `gain`.
    """
    if isinstance(module, HasGain):
        return _check_gain(module, module.gain)
    slopes = slopes_of(module)
    if slopes is not None:
        return max(map(abs, slopes))
    for kind, gain in _GAINS.items():
        if computes_as(module, kind):
            return gain(module)
    raise UnsupportedError(
        f"The constant of {type(module).__name__} is not known{_why(module)}; use the layer of lipkit.nn in its "
        "place, give the module a property `gain`, or convert the whole model with lipkit.nn.lipschitzify."
    )


def covers_complex(module: nn.Module) -> bool:
    """Whether the constant of a module, `gain_of`, also holds where it is called with complex numbers.

    Layers and other modules say so by a property of this name; modules of torch.nn that only move entries need not.
    Functions of single entries do not: the complex tanh, for example, has poles.
    """
    if isinstance(module, nn.Sequential) and not isinstance(module, HasGain):
        return all(map(covers_complex, module))
    return getattr(module, "covers_complex", False) is True or computes_as(module, nn.Identity, *_ONE, *_DROPOUT)


def _check_gain(module: nn.Module, gain: object) -> float:
    # The name is also that of learnt scales, which are tensors and state nothing.
    if not isinstance(gain, int | float) or not 0 <= gain < math.inf:
        raise UnsupportedError(
            f"{type(module).__name__}.gain must be a finite number, an upper bound of its l2 constant, and is of type "
            f"{type(gain).__name__}; rename it if it means something else, and state the constant as `gain`."
        )
    return float(gain)


def _why(module: nn.Module) -> str:
    if isinstance(module, _BATCH_NORM):
        return " for all time: it changes with the running variance and the weight"
    if isinstance(module, nn.Linear | nn.PReLU | nn.modules.conv._ConvNd):
        return " for all time: it changes with the weight"
    return ""


def _rrelu(module: nn.RReLU) -> float:
    if module.training:
        raise UnsupportedError(
            "RReLU draws its slopes in training, which is no Lipschitz map; call .eval() on it, or leave it out."
        )
    return max(1.0, abs(module.lower + module.upper) / 2)


def _upsample(module: nn.Upsample) -> float:
    factors = module.scale_factor if isinstance(module.scale_factor, tuple) else (module.scale_factor,)
    if module.mode != "nearest" or not all(isinstance(f, int | float) and float(f).is_integer() for f in factors):
        raise UnsupportedError(
            f"The constant of {module} depends on the size of the image; use mode='nearest' with whole scale factors, "
            "given for each axis, or lipkit.nn.DepthToSpace."
        )
    if len(factors) == 1:
        raise UnsupportedError(f"{module} does not say how many axes it enlarges; give one scale factor for each axis.")
    # torch finds the source of entry i as floor(i fl(1/f)) in float32: where f fl(1/f) < 1, first for 41, it is one too
    # low, and the entry before it is repeated once more. What holds for i = f holds for all its multiples.
    if any(float(torch.tensor(f, dtype=torch.float32) * torch.tensor(1 / f, dtype=torch.float32)) < 1 for f in factors):
        raise UnsupportedError(f"{module} repeats some entries more often than its factors say; compose smaller ones.")
    return math.sqrt(math.prod(float(f or 1) for f in factors)) * _UP


def _average(module: Any, dims: int) -> float:
    """Schur's test: rows average m entries with weights 1/m, and a column is in at most `windows_per_entry` rows."""
    kernel = per_axis(module.kernel_size, dims, "kernel_size")
    stride = per_axis(module.stride, dims, "stride")
    padding = per_axis(module.padding, dims, "padding")
    cover = windows_per_entry(kernel, stride, (1,) * dims)
    divisor = getattr(module, "divisor_override", None)
    if divisor is not None:
        return math.sqrt(math.prod(kernel) * cover) / abs(divisor) * _UP
    if module.ceil_mode:
        # A window that runs over the edge may keep a single entry.
        return math.sqrt(cover) * _UP
    if module.count_include_pad:
        return math.sqrt(cover / math.prod(kernel)) * _UP
    return math.sqrt(math.prod(map(_columns, kernel, stride, padding))) * _UP


def _columns(kernel: int, stride: int, padding: int) -> float:
    """The largest column sum of means over the entries that are there, along one axis, for every length.

    Windows cut at one end keep `kernel` - `padding` entries or more. Images shorter than that may be cut at both ends:
    they are few, and counted one by one.
    """
    found = -(-kernel // stride) / (kernel - padding)
    for size in range(max(1, kernel - 2 * padding), kernel - padding):
        sums = [0.0] * size
        for start in range(-padding, size + padding - kernel + 1, stride):
            low, high = max(start, 0), min(start + kernel, size)
            for at in range(low, high):
                sums[at] += 1 / (high - low)
        found = max(found, *sums)
    return found


def _maximum(module: Any, dims: int) -> float:
    if module.return_indices:
        raise UnsupportedError(f"{module} also returns positions, which jump; set return_indices=False.")
    sizes = (per_axis(v, dims, "pooling") for v in (module.kernel_size, module.stride, module.dilation))
    return math.sqrt(windows_per_entry(*sizes)) * _UP


def _norm(module: Any, dims: int) -> float:
    if module.norm_type != 2:
        raise UnsupportedError(f"The constant of {module} is known for norm_type=2 only; use lipkit.nn.L2NormPool2d.")
    kernel = per_axis(module.kernel_size, dims, "kernel_size")
    stride = kernel if module.stride is None else per_axis(module.stride, dims, "stride")
    # With ceil_mode torch multiplies the mean over the entries that are there by the size of the whole window.
    cut = math.prod(kernel) if module.ceil_mode else 1
    return math.sqrt(cut * windows_per_entry(kernel, stride, (1,) * dims)) * _UP


def _global(module: Any) -> float:
    if getattr(module, "return_indices", False):
        raise UnsupportedError(f"{module} also returns positions, which jump; set return_indices=False.")
    size = module.output_size
    if any(n != 1 for n in (size if isinstance(size, tuple) else (size,))):
        raise UnsupportedError(
            f"The windows of {module} overlap and repeat in a way that depends on the size of the image; use "
            "lipkit.nn.AdaptiveAvgPool or AdaptiveL2NormPool, output size 1, or a pooling layer with a kernel size."
        )
    return 1.0


_GAINS: dict[type[nn.Module], Callable[[Any], float]] = {
    **dict.fromkeys((*_ONE, *_DROPOUT), lambda _: 1.0),
    **dict.fromkeys(_HALF, lambda _: 0.5),
    **dict.fromkeys(_GLOBAL, _global),
    **{kind: partial(_average, dims=dims) for kind, dims in _AVERAGE.items()},
    **{kind: partial(_maximum, dims=dims) for kind, dims in _MAXIMUM.items()},
    **{kind: partial(_norm, dims=dims) for kind, dims in _NORM.items()},
    nn.RReLU: _rrelu,
    nn.Upsample: _upsample,
    nn.Sequential: lambda chain: math.prod(map(gain_of, chain)) * _UP ** len(chain),
}
