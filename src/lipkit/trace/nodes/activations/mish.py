"""Mish, z tanh(softplus(z))."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.trace.nodes.activations.curve import Curve, station
from lipkit.trace.nodes.activations.smooth import Smooth

# Beyond this the gate is at its limit to within 2^-60, and no power of exp(z) overflows.
_FAR = 60.0

# The gate w = tanh(log(1 + n)) with n = exp(z) is rational: w = n (n + 2) / D, D = n^2 + 2 n + 2, and
#   w' = 4 n (n + 1) / D^2,   w'' = 4 n (2 + 2 n - 3 n^2 - 2 n^3) / D^3,
#   w''' = 4 n ((2 + 4 n - 9 n^2 - 8 n^3) D - 6 n (n + 1) (2 + 2 n - 3 n^2 - 2 n^3)) / D^4,
#   f^(k) = z w^(k) + k w^(k-1).


def _gate(x: float) -> tuple[float, float, float, float]:
    n = math.exp(x)
    d, cubic = n * n + 2 * n + 2, 2 + 2 * n - 3 * n * n - 2 * n**3
    fourth = (2 + 4 * n - 9 * n * n - 8 * n**3) * d - 6 * n * (n + 1) * cubic
    return n * (n + 2) / d, 4 * n * (n + 1) / d**2, 4 * n * cubic / d**3, 4 * n * fourth / d**4


def _value(x: float) -> float:
    return x * _gate(x)[0]


def _slope(x: float) -> float:
    w, w1, _, _ = _gate(x)
    return w + x * w1


def _bend(x: float) -> float:
    _, w1, w2, _ = _gate(x)
    return 2 * w1 + x * w2


def _third(x: float) -> float:
    _, _, w2, w3 = _gate(x)
    return 3 * w2 + x * w3


def _slope_of(z: Tensor) -> Tensor:
    z = z.clamp(-_FAR, _FAR)
    n = torch.exp(z)
    d = n * n + 2 * n + 2
    return n * ((n + 2) + 4 * z * (n + 1) / d) / d


def _bend_of(z: Tensor) -> Tensor:
    z = z.clamp(-_FAR, _FAR)
    n = torch.exp(z)
    d = n * n + 2 * n + 2
    return 4 * n * (2 * (n + 1) + z * (2 + 2 * n - 3 * n * n - 2 * n**3) / d) / d**2


MISH = Smooth(
    "mish",
    Curve(functional.mish, (0.0, math.inf), (station(_value, _slope, -1.5, -1),)),
    Curve(_slope_of, (0.0, 1.0), (station(_slope, _bend, -3, -2), station(_slope, _bend, 1, 2))),
    Curve(
        _bend_of,
        (0.0, 0.0),
        (station(_bend, _third, -4, -3), station(_bend, _third, -0.5, 0.5), station(_bend, _third, 1.5, 3)),
    ),
)
