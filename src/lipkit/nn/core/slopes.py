"""The slopes of torch's activations: one table for constants, residual layers and conversions."""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from lipkit.errors import UnsupportedError
from lipkit.rounding.slacks import ROUNDINGS_32, ROUNDINGS_8192, SOFTPLUS_THRESHOLDS, softplus_jumps

# Covers the rounding of the constants below, a few units of float64, many times over.
_UP = 1 + ROUNDINGS_8192


# The largest slopes, to 16 digits; tests compare them with mpmath.
# GELU, z Phi(z): its second derivative is phi(z) (2 - z^2), so the slope Phi + z phi is largest at sqrt(2).
GELU: Final = 1.128904145185155 * _UP
# GELU in its tanh form, z (1 + tanh u)/2 with u = sqrt(2/pi) (z + .044715 z^3).
GELU_TANH: Final = 1.1289930686587717 * _UP
# SiLU, z sigmoid(z): 1/2 + x/4 where x tanh(x/2) = 2; the same for z sigmoid(beta z).
SILU: Final = 1.0998393201288668 * _UP
# Mish, z tanh(softplus(z)).
MISH: Final = 1.088498161251728 * _UP


def slopes_of(module: nn.Module) -> tuple[float, float] | None:
    """The smallest and the largest slope of an activation of torch.nn, rounded outwards; None for any other module.

    They hold in training and in evaluation, for the module with the parameters it has now. One that jumps, or that has
    no largest slope, is refused.
    """
    for kind, slopes in _SLOPES.items():
        if computes_as(module, kind):
            return slopes(module) if callable(slopes) else slopes
    return None


def computes_as(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module computes what one of these kinds does: a subclass with a forward of its own may not."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def rises_by_at_most_one() -> list[str]:
    """The names of the activations whose slopes lie in [0, 1] as torch makes them."""
    slopes = {kind.__name__: slopes_of(kind()) for kind in _SLOPES}
    return sorted(name for name, found in slopes.items() if found is not None and found[0] >= 0 and found[1] <= 1)


def switches_with_a_jump(module: nn.Softplus) -> bool:
    """Whether nn.Softplus visibly jumps where it switches to x: by log(1 + exp(-threshold)) / beta."""
    return softplus_jumps(module.beta, module.threshold)


def _softplus(module: nn.Softplus) -> tuple[float, float]:
    if switches_with_a_jump(module):
        least, largest = SOFTPLUS_THRESHOLDS
        raise UnsupportedError(
            f"{module} jumps by log(1 + exp(-threshold)) / beta where it switches to x; take a threshold "
            f"from {least:g} to {largest:g} and beta not near 0, or lipkit.nn.Softplus, which does not switch."
        )
    # The slope is sigmoid(beta x), for either sign of beta.
    return 0.0, 1.0


def _celu(module: nn.CELU) -> tuple[float, float]:
    if not module.alpha > 0:
        raise UnsupportedError(f"{module} has slopes exp(x / alpha) without bound; take alpha > 0.")
    # As in the rule of the operation; a module has no type of its own, and float32 is what most run in.
    if not module.alpha <= 1 / torch.finfo(torch.float32).eps:
        raise UnsupportedError(
            f"{module} divides by alpha first, which loses the digits of small inputs in float32; use nn.Identity, "
            "which it is for such an alpha, or a smaller one."
        )
    return 0.0, 1.0


def _leaky(module: nn.LeakyReLU) -> tuple[float, float]:
    slope = _finite(module, module.negative_slope)
    return min(1.0, slope), max(1.0, slope)


def _elu(module: nn.ELU) -> tuple[float, float]:
    alpha = _finite(module, module.alpha)
    return min(0.0, alpha), max(1.0, alpha)


def _finite(module: nn.Module, number: float) -> float:
    if not math.isfinite(number):
        raise UnsupportedError(f"{module} has no largest slope; give it finite parameters.")
    return number


_Slopes = tuple[float, float]
_RISING: Final[_Slopes] = (0.0, 1.0)
_SLOPES: Final[dict[type[nn.Module], _Slopes | Callable[[Any], _Slopes]]] = {
    nn.Identity: (1.0, 1.0),
    nn.ReLU: _RISING,
    nn.ReLU6: _RISING,
    nn.Tanh: _RISING,
    nn.Hardtanh: _RISING,
    nn.LogSigmoid: _RISING,
    nn.Softshrink: _RISING,
    nn.Softsign: _RISING,
    nn.Tanhshrink: _RISING,
    nn.Sigmoid: (0.0, 0.25),
    nn.Hardsigmoid: (0.0, _UP / 6),
    nn.Softplus: _softplus,
    nn.CELU: _celu,
    nn.LeakyReLU: _leaky,
    nn.ELU: _elu,
    # scale * alpha = 1.0507... * 1.6732..., the slope of SELU left of zero.
    nn.SELU: (0.0, 1.0507009873554805 * 1.6732632423543772 * (1 + ROUNDINGS_32)),
    # These two are z w(z) with w(z) + w(-z) = 1: the slopes at z and at -z add up to one.
    nn.GELU: lambda m: (1 - GELU, GELU) if m.approximate == "none" else (1 - GELU_TANH, GELU_TANH),
    nn.SiLU: (1 - SILU, SILU),
    # The smallest slope is above minus a fifth.
    nn.Mish: (-0.2, MISH),
    # x (x + 3) / 6 has slopes -1/2 at x = -3 and 3/2 at x = 3.
    nn.Hardswish: (-0.5, 1.5),
}
