"""ELU, SELU and CELU: exponential below zero, linear above."""

import math

import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_64
from lipkit.trace.nodes.activations.curve import Curve, level
from lipkit.trace.nodes.activations.smooth import Piecewise, Smooth

# The constants of self-normalising networks as torch has them (Klambauer et al., 2017).
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def elu(alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0, label: str = "elu") -> Piecewise:
    """scale z for z >= 0, scale alpha (exp(rate z) - 1) below.

    Slopes: `scale` above, scale alpha rate exp(rate z) below, which is largest at 0; so Lip = scale max(1, alpha rate)
    for positive numbers. The slope jumps at 0 unless alpha rate = 1.
    """
    if not (rate > 0 and all(map(math.isfinite, (alpha, scale, rate)))):
        raise ArgumentError(f"{label} needs finite numbers and a rate > 0, got {alpha}, {scale}, {rate}.")
    deep = scale * alpha

    def below(z: Tensor) -> Tensor:
        return deep * torch.expm1(rate * z)

    steep = deep * rate
    # Three factors and one exponential; without factors, the largest slope is exactly 1.
    error = 0.0 if alpha == scale == rate == 1 else abs(steep) * ROUNDINGS_8
    bounds = (min(0.0, steep) - error, max(0.0, steep) + error)
    exponential = Smooth(
        label,
        Curve(below, (-deep, math.copysign(math.inf, deep)), absolute=abs(deep) * ROUNDINGS_64),
        Curve(lambda z: steep * torch.exp(rate * z), (0.0, steep * math.inf), bounds=bounds),
        Curve(
            lambda z: steep * rate * torch.exp(rate * z),
            (0.0, steep * math.inf),
            absolute=abs(steep) * rate * ROUNDINGS_64,
        ),
    )
    linear = Smooth(
        label,
        Curve(lambda z: scale * z, (-scale * math.inf, scale * math.inf)),
        level(scale),
        level(0.0),
    )
    return Piecewise(label, (0.0,), (exponential, linear))


def celu(alpha: float = 1.0) -> Piecewise:
    """z for z >= 0, alpha (exp(z / alpha) - 1) below: slope exp(z / alpha) in (0, 1], continuous."""
    if not alpha > 0:
        raise ArgumentError(f"celu needs alpha > 0, got {alpha}.")

    def slope(z: Tensor) -> Tensor:
        return torch.exp(z / alpha)

    exponential = Smooth(
        "celu",
        Curve(lambda z: alpha * torch.expm1(z / alpha), (-alpha, math.inf), absolute=alpha * ROUNDINGS_64),
        Curve(slope, (0.0, math.inf), bounds=(0.0, 1.0)),
        Curve(lambda z: slope(z) / alpha, (0.0, math.inf), absolute=ROUNDINGS_64 / alpha),
    )
    linear = Smooth("celu", Curve(lambda z: z, (-math.inf, math.inf)), level(1.0), level(0.0))
    return Piecewise("celu", (0.0,), (exponential, linear))


SELU = elu(_SELU_ALPHA, _SELU_SCALE, 1.0, "selu")
