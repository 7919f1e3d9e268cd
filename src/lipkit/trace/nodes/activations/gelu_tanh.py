"""The tanh form of GELU."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.rounding.slacks import ROUNDINGS_4
from lipkit.trace.nodes.activations.curve import Curve, Station, station
from lipkit.trace.nodes.activations.smooth import Smooth

_C, _A = math.sqrt(2 / math.pi), 0.044715
# Beyond this tanh(u) is 1 to within 2^-60, and no power overflows.
_FAR = 20.0

# f = z (1 + t) / 2 with t = tanh u, u = c (z + a z^3), and S = 1 - t^2:
#   t' = S u',   t'' = S (u'' - 2 t u'^2),   t''' = S (u''' - 6 t u' u'' - 2 S u'^3 + 4 t^2 u'^3),
#   f' = (1 + t) / 2 + z t' / 2,   f'' = t' + z t'' / 2,   f''' = 3 t'' / 2 + z t''' / 2.
# f'' has one root on each side: u' + z u'' / 2 = z t u'^2 reads 1 = c z t (1 + 3 a z^2)^2 / (1 + 6 a z^2), which rises.


def _parts(x: float) -> tuple[float, float, float, float, float]:
    """t, S, u', u'', u''' at x."""
    u = _C * (x + _A * x**3)
    rise = 1 / (1 + math.exp(-2 * u))
    return math.tanh(u), 4 * rise * (1 - rise), _C * (1 + 3 * _A * x * x), 6 * _C * _A * x, 6 * _C * _A


def _value(x: float) -> float:
    return x / (1 + math.exp(-2 * _C * (x + _A * x**3)))


def _slope(x: float) -> float:
    t, s, u1, _, _ = _parts(x)
    return (1 + t) / 2 + x * s * u1 / 2


def _bend(x: float) -> float:
    t, s, u1, u2, _ = _parts(x)
    return s * u1 + x * s * (u2 - 2 * t * u1 * u1) / 2


def _third(x: float) -> float:
    t, s, u1, u2, u3 = _parts(x)
    second = s * (u2 - 2 * t * u1 * u1)
    return 1.5 * second + x * s * (u3 - 6 * t * u1 * u2 - 2 * s * u1**3 + 4 * t * t * u1**3) / 2


def _inner(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = z.clamp(-_FAR, _FAR)
    return z, _C * (z + _A * z**3), _C * (1 + 3 * _A * z * z)


def _slope_of(z: Tensor) -> Tensor:
    z, u, u1 = _inner(z)
    # (1 + tanh u) / 2 = sigmoid(2 u) and S = 4 sigmoid(2 u) sigmoid(-2 u): nothing cancels.
    rise = torch.sigmoid(2 * u)
    return rise * (1 + 2 * z * torch.sigmoid(-2 * u) * u1)


def _bend_of(z: Tensor) -> Tensor:
    z, u, u1 = _inner(z)
    s = 4 * torch.sigmoid(2 * u) * torch.sigmoid(-2 * u)
    return s * (u1 + z * (6 * _C * _A * z - 2 * torch.tanh(u) * u1 * u1) / 2)


def _gelu(z: Tensor) -> Tensor:
    return functional.gelu(z, approximate="tanh")


GELU_TANH = Smooth(
    "gelu(tanh)",
    Curve(_gelu, (0.0, math.inf), (station(_value, _slope, -1, -0.5),)),
    Curve(_slope_of, (0.0, 1.0), (station(_slope, _bend, -2, -1), station(_slope, _bend, 1, 2))),
    Curve(
        _bend_of,
        (0.0, 0.0),
        (station(_bend, _third, -3, -1.5), Station(0.0, _C, ROUNDINGS_4), station(_bend, _third, 1.5, 3)),
    ),
)
