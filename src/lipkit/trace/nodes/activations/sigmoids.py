"""Bounded and slowly growing activations: sigmoid, tanh, erf, atan, softplus and their relatives."""

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_64, UNIT
from lipkit.trace.nodes.activations.curve import Curve, Station, level
from lipkit.trace.nodes.activations.smooth import Piecewise, Smooth

_ROOT3 = math.sqrt(3.0)
# Two or three roundings of numbers below 1.
_ULPS = ROUNDINGS_4


def _bump(z: Tensor) -> Tensor:
    """s (1 - s) for s = sigmoid(z)."""
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _wave(z: Tensor) -> Tensor:
    """s (1 - s) (1 - 2 s) for s = sigmoid(z): the second derivative of the sigmoid."""
    return -_bump(z) * torch.tanh(z / 2)


@cache
def softplus(beta: float) -> Smooth:
    """log(1 + exp(beta z)) / beta: slope sigmoid(beta z) in (0, 1), curvature at most beta / 4."""
    if not beta > 0:
        raise ArgumentError(f"softplus needs beta > 0, got {beta}.")

    def at(z: Tensor) -> Tensor:
        return torch.logaddexp(beta * z, torch.zeros_like(z)) / beta

    return Smooth(
        "softplus",
        Curve(at, (0.0, math.inf)),
        Curve(lambda z: torch.sigmoid(beta * z), (0.0, 1.0)),
        Curve(
            lambda z: beta * _bump(beta * z),
            (0.0, 0.0),
            (Station(0.0, beta / 4, beta * _ULPS),),
            absolute=beta * ROUNDINGS_64,
        ),
    )


def _tanh_slope(z: Tensor) -> Tensor:
    return 4 * _bump(2 * z)  # 1 - tanh^2 without cancellation


# f' = s (1 - s), largest at 0; f'' = s (1 - s) (1 - 2 s), extremal where 6 s^2 - 6 s + 1 = 0, s = (3 -+ sqrt 3) / 6.
SIGMOID = Smooth(
    "sigmoid",
    Curve(torch.sigmoid, (0.0, 1.0)),
    Curve(_bump, (0.0, 0.0), (Station(0.0, 0.25),)),
    Curve(
        _wave,
        (0.0, 0.0),
        (
            Station(-math.log(2 + _ROOT3), _ROOT3 / 18, _ULPS),
            Station(math.log(2 + _ROOT3), -_ROOT3 / 18, _ULPS),
        ),
    ),
)

# tanh(z) = 2 sigmoid(2 z) - 1.
TANH = Smooth(
    "tanh",
    Curve(torch.tanh, (-1.0, 1.0)),
    Curve(_tanh_slope, (0.0, 0.0), (Station(0.0, 1.0),)),
    Curve(
        lambda z: 8 * _wave(2 * z),
        (0.0, 0.0),
        (
            Station(-math.log(2 + _ROOT3) / 2, 4 * _ROOT3 / 9, _ULPS),
            Station(math.log(2 + _ROOT3) / 2, -4 * _ROOT3 / 9, _ULPS),
        ),
    ),
)

# z - tanh z: f' = tanh^2 in [0, 1), f'' = -tanh''.
TANHSHRINK = Smooth(
    "tanhshrink",
    Curve(lambda z: z - torch.tanh(z), (-math.inf, math.inf)),
    Curve(lambda z: torch.tanh(z) ** 2, (1.0, 1.0), (Station(0.0, 0.0),)),
    Curve(
        lambda z: -8 * _wave(2 * z),
        (0.0, 0.0),
        (
            Station(-math.log(2 + _ROOT3) / 2, -4 * _ROOT3 / 9, _ULPS),
            Station(math.log(2 + _ROOT3) / 2, 4 * _ROOT3 / 9, _ULPS),
        ),
    ),
)

# log sigmoid(z) = -softplus(-z).
LOGSIGMOID = Smooth(
    "logsigmoid",
    Curve(functional.logsigmoid, (-math.inf, 0.0)),
    Curve(lambda z: torch.sigmoid(-z), (1.0, 0.0)),
    Curve(lambda z: -_bump(z), (0.0, 0.0), (Station(0.0, -0.25),)),
)

_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)
# f' = 2 exp(-z^2) / sqrt(pi), f'' = -2 z f', extremal at z = -+1/sqrt(2).
ERF = Smooth(
    "erf",
    Curve(torch.erf, (-1.0, 1.0)),
    Curve(lambda z: _TWO_OVER_ROOT_PI * torch.exp(-z * z), (0.0, 0.0), (Station(0.0, _TWO_OVER_ROOT_PI, _ULPS),)),
    Curve(
        lambda z: -2 * z.clamp(-30, 30) * _TWO_OVER_ROOT_PI * torch.exp(-z * z),
        (0.0, 0.0),
        (
            Station(-math.sqrt(0.5), 2 * math.sqrt(2 / (math.pi * math.e)), 2 * _ULPS),
            Station(math.sqrt(0.5), -2 * math.sqrt(2 / (math.pi * math.e)), 2 * _ULPS),
        ),
    ),
)

# f' = 1 / (1 + z^2), f'' = -2 z / (1 + z^2)^2, extremal at z = -+1/sqrt(3).
ATAN = Smooth(
    "atan",
    Curve(torch.atan, (-math.pi / 2 - _ULPS, math.pi / 2 + _ULPS)),
    Curve(lambda z: 1 / (1 + z * z), (0.0, 0.0), (Station(0.0, 1.0),)),
    Curve(
        lambda z: -2 * (z / (1 + z * z)) / (1 + z * z),
        (0.0, 0.0),
        (Station(-1 / _ROOT3, 3 * _ROOT3 / 8, _ULPS), Station(1 / _ROOT3, -3 * _ROOT3 / 8, _ULPS)),
    ),
)


def _root(z: Tensor) -> Tensor:
    return torch.hypot(z, torch.ones_like(z))


# f' = (1 + z^2)^(-1/2), f'' = -z (1 + z^2)^(-3/2), extremal at z = -+1/sqrt(2).
ASINH = Smooth(
    "asinh",
    Curve(torch.asinh, (-math.inf, math.inf)),
    Curve(lambda z: 1 / _root(z), (0.0, 0.0), (Station(0.0, 1.0),)),
    Curve(
        lambda z: -(z / _root(z)) / _root(z) ** 2,
        (0.0, 0.0),
        (Station(-math.sqrt(0.5), 2 * _ROOT3 / 9, _ULPS), Station(math.sqrt(0.5), -2 * _ROOT3 / 9, _ULPS)),
    ),
)

# z / (1 + |z|): f' = 1 / (1 + |z|)^2 is continuous, f'' = -+2 / (1 + |z|)^3 jumps at 0.
SOFTSIGN = Piecewise(
    "softsign",
    (0.0,),
    (
        Smooth(
            "softsign",
            Curve(lambda z: z / (1 - z), (-1.0, math.inf)),
            Curve(lambda z: (1 - z) ** -2, (0.0, math.inf), bounds=(0.0, 1.0)),
            Curve(lambda z: 2 * (1 - z) ** -3, (0.0, math.inf)),
        ),
        Smooth(
            "softsign",
            Curve(lambda z: z / (1 + z), (-math.inf, 1.0)),
            Curve(lambda z: (1 + z) ** -2, (math.inf, 0.0), bounds=(0.0, 1.0)),
            Curve(lambda z: -2 * (1 + z) ** -3, (-math.inf, 0.0)),
        ),
    ),
)

# z / 6 + 1/2 cut to [0, 1]; 1/6 is no float, so its slope is known to half a unit in the last place.
HARDSIGMOID = Piecewise(
    "hardsigmoid",
    (-3.0, 3.0),
    (
        Smooth("hardsigmoid", level(0.0), level(0.0), level(0.0)),
        Smooth(
            "hardsigmoid",
            Curve(lambda z: (z + 3) / 6, (-math.inf, math.inf), bounds=(0.0, 1.0)),
            level(1 / 6, UNIT / 4),
            level(0.0),
        ),
        Smooth("hardsigmoid", level(1.0), level(0.0), level(0.0)),
    ),
)
