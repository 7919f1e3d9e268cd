"""Constants of modules that hold whatever the shape of the input."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import nn

from lipkit.errors import UnsupportedError
from lipkit.nn import slopes
from lipkit.nn.windows import covering, each_axis

# Modules of torch.nn that are 1-Lipschitz in l2 for every shape, in training and in evaluation.
_ONE = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softshrink, nn.CELU),
    *(nn.Softsign, nn.Tanhshrink, nn.Hardsigmoid, nn.Softmax, nn.Softmin, nn.Softmax2d),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
)
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
_UP = 1 + 2.0**-48


@runtime_checkable
class HasGain(Protocol):
    """A module that knows a constant of itself for every shape."""

    @property
    def gain(self) -> float:
        """An upper bound of the l2 constant, for inputs of every shape the module accepts."""
        ...


def gain_of(module: nn.Module) -> float:
    """An upper bound of the l2 constant of a module for every shape: its own, or that of a known module of torch.nn.

    What changes with weights or statistics (nn.Linear, nn.BatchNorm, nn.PReLU) and what draws random numbers is
    refused: a gain is a promise about the module, not about a moment.
    """
    if isinstance(module, HasGain):
        return module.gain
    if isinstance(module, _ONE):
        return 1.0
    if isinstance(module, _DROPOUT):
        return _evaluating(module, "multiplies by random numbers")
    for kind, gain in _TABLE.items():
        if isinstance(module, kind):
            return gain(module)
    for kinds, pooled in ((_AVERAGE, _average), (_MAXIMUM, _maximum), (_NORM, _norm)):
        for kind, dims in kinds.items():
            if isinstance(module, kind):
                return pooled(module, dims)
    if isinstance(module, _GLOBAL):
        return _global(module)
    if isinstance(module, nn.Sequential):
        return math.prod(map(gain_of, module)) * _UP ** len(module)
    raise UnsupportedError(
        f"The constant of {type(module).__name__} is not known{_why(module)}; use the layer of lipkit.nn in its "
        "place, give the module a property `gain`, or convert the whole model with lipkit.nn.lipschitzify."
    )


def _why(module: nn.Module) -> str:
    if isinstance(module, _BATCH_NORM):
        return " for all time: it changes with the running variance and the weight"
    if isinstance(module, nn.Linear | nn.PReLU | nn.modules.conv._ConvNd):
        return " for all time: it changes with the weight"
    return ""


def _evaluating(module: nn.Module, what: str) -> float:
    if module.training:
        raise UnsupportedError(
            f"{type(module).__name__} {what} in training, which is no Lipschitz map; call .eval() on it, or leave it "
            "out."
        )
    return 1.0


def _rrelu(module: nn.RReLU) -> float:
    _evaluating(module, "draws its slopes")
    return max(1.0, abs(module.lower + module.upper) / 2)


def _upsample(module: nn.Upsample) -> float:
    factors = module.scale_factor if isinstance(module.scale_factor, tuple) else (module.scale_factor,)
    if module.mode != "nearest" or not all(isinstance(f, int | float) and float(f).is_integer() for f in factors):
        raise UnsupportedError(
            f"The constant of {module} depends on the size of the image; use mode='nearest' with whole scale factors, "
            "given for each axis, or DepthToSpace."
        )
    if len(factors) == 1:
        raise UnsupportedError(f"{module} does not say how many axes it enlarges; give one scale factor for each axis.")
    return math.sqrt(math.prod(float(f or 1) for f in factors)) * _UP


def _average(module: Any, dims: int) -> float:
    """Schur's test: rows average m entries with weights 1/m, and a column is in at most `covering` rows."""
    kernel = each_axis(module.kernel_size, dims, "kernel_size")
    stride = each_axis(module.stride, dims, "stride")
    padding = each_axis(module.padding, dims, "padding")
    cover = covering(kernel, stride, (1,) * dims)
    divisor = getattr(module, "divisor_override", None)
    if divisor is not None:
        return math.sqrt(math.prod(kernel) * cover) / abs(divisor) * _UP
    if module.ceil_mode:
        # A window that runs over the edge may keep a single entry.
        return math.sqrt(cover) * _UP
    fewest = kernel if module.count_include_pad else tuple(k - p for k, p in zip(kernel, padding, strict=True))
    return math.sqrt(cover / math.prod(fewest)) * _UP


def _maximum(module: Any, dims: int) -> float:
    if module.return_indices:
        raise UnsupportedError(f"{module} also returns positions, which jump; set return_indices=False.")
    sizes = (each_axis(v, dims, "pooling") for v in (module.kernel_size, module.stride, module.dilation))
    return math.sqrt(covering(*sizes)) * _UP


def _norm(module: Any, dims: int) -> float:
    if module.norm_type != 2:
        raise UnsupportedError(f"The constant of {module} is known for norm_type=2 only; use L2NormPool.")
    kernel = each_axis(module.kernel_size, dims, "kernel_size")
    stride = kernel if module.stride is None else each_axis(module.stride, dims, "stride")
    return math.sqrt(covering(kernel, stride, (1,) * dims)) * _UP


def _global(module: Any) -> float:
    size = module.output_size
    if any(n != 1 for n in (size if isinstance(size, tuple) else (size,))):
        raise UnsupportedError(
            f"The windows of {module} overlap and repeat in a way that depends on the size of the image; use output "
            "size 1, or a pooling layer with a kernel size."
        )
    return 1.0


_TABLE: dict[type[nn.Module], Callable[[Any], float]] = {
    nn.LeakyReLU: lambda m: max(1.0, abs(m.negative_slope)),
    nn.ELU: lambda m: max(1.0, abs(m.alpha)),
    # scale * alpha = 1.0507... * 1.6732..., the slope of SELU left of zero.
    nn.SELU: lambda _: 1.0507009873554805 * 1.6732632423543772 * _UP,
    nn.GELU: lambda m: slopes.GELU if m.approximate == "none" else slopes.GELU_TANH,
    nn.SiLU: lambda _: slopes.SILU,
    nn.Mish: lambda _: slopes.MISH,
    # x (x + 3) / 6 has slope 3/2 at x = 3.
    nn.Hardswish: lambda _: 1.5,
    nn.RReLU: _rrelu,
    nn.Upsample: _upsample,
}
