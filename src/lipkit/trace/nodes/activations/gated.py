"""Activations z g(z) with a gate g that rises from 0 to 1: SiLU, GELU, Mish, hard swish."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8, ROUNDINGS_64, UNIT
from lipkit.trace.nodes.activations.curve import Curve, Station, level, station
from lipkit.trace.nodes.activations.smooth import Piecewise, Smooth

# Beyond these arguments every gate below and its derivatives are at their limits to within 2^-60.
_FAR = 60.0


def _clip(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The curve beyond `_FAR` is what it is there; no power of z can overflow."""
    return lambda z: fn(z.clamp(-_FAR, _FAR))


# SiLU: f = z s, s = sigmoid(z); f^(n) = z s^(n) + n s^(n-1), with s' = s (1 - s), s'' = s' (1 - 2 s),
# s''' = s' (1 - 6 s + 6 s^2).
def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _silu1(x: float) -> float:
    s = _sigmoid(x)
    return s * (1 + x * _sigmoid(-x))


def _silu2(x: float) -> float:
    return _sigmoid(x) * _sigmoid(-x) * (2 - x * math.tanh(x / 2))


def _silu3(x: float) -> float:
    s = _sigmoid(x)
    return s * _sigmoid(-x) * (x * (1 - 6 * s + 6 * s * s) - 3 * math.tanh(x / 2))


def _silu_slope(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))


def _silu_bend(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z) * (2 - z * torch.tanh(z / 2))


@cache
def swish(beta: float = 1.0) -> Smooth:
    """z sigmoid(beta z), beta > 0: SiLU at 1, quick GELU at 1.702.

    f(z) = silu(beta z) / beta, so the slopes are those of SiLU whatever beta is: the largest is 1/2 + x/4 with
    x tanh(x / 2) = 2, and f'(-z) = 1 - f'(z).
    """
    if not beta > 0:
        raise ArgumentError(f"swish needs beta > 0, got {beta}.")
    bottom = station(lambda x: x * _sigmoid(x), _silu1, -2, -1)
    right = station(_silu1, _silu2, 2, 3)
    left = station(_silu1, _silu2, -3, -2)
    dips = (station(_silu2, _silu3, -5, -2), station(_silu2, _silu3, 2, 5))

    def scaled(at: Station, factor: float) -> Station:
        return Station(at.place / beta, at.value * factor, (at.error + ROUNDINGS_4) * factor, at.blur / beta)

    return Smooth(
        "silu" if beta == 1 else f"swish({beta:g})",
        Curve(
            functional.silu if beta == 1 else lambda z: z * torch.sigmoid(beta * z),
            (0.0, math.inf),
            (scaled(bottom, 1 / beta),),
            absolute=ROUNDINGS_64 / beta,
        ),
        Curve(_clip_at(beta, _silu_slope), (0.0, 1.0), (_move(left, beta), _move(right, beta))),
        Curve(
            lambda z: beta * _clip_at(beta, _silu_bend)(z),
            (0.0, 0.0),
            (scaled(dips[0], beta), Station(0.0, beta / 2, ROUNDINGS_4 * beta), scaled(dips[1], beta)),
            absolute=ROUNDINGS_64 * beta,
        ),
    )


def _move(at: Station, beta: float) -> Station:
    return Station(at.place / beta, at.value, at.error, at.blur / beta)


def _clip_at(beta: float, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda z: fn((beta * z).clamp(-_FAR, _FAR))


# GELU: f = z Phi(z), f' = Phi + z phi, f'' = phi (2 - z^2), f''' = phi (z^3 - 4 z).
def _phi(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu1(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2 + x * _phi(x)


def _gelu2(x: float) -> float:
    return _phi(x) * (2 - x * x)


def _normal(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


GELU = Smooth(
    "gelu",
    Curve(
        functional.gelu, (0.0, math.inf), (station(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2, _gelu1, -1, -0.5),)
    ),
    Curve(
        _clip(lambda z: torch.erfc(-z / math.sqrt(2)) / 2 + z * _normal(z)),
        (0.0, 1.0),
        (station(_gelu1, _gelu2, -2, -1), station(_gelu1, _gelu2, 1, 2)),
    ),
    Curve(
        _clip(lambda z: _normal(z) * (2 - z * z)),
        (0.0, 0.0),
        tuple(Station(x, _gelu2(x), ROUNDINGS_8) for x in (-2.0, 0.0, 2.0)),
    ),
)

# Hard swish: z (z + 3) / 6 between -3 and 3, 0 below, z above; the slope (2 z + 3) / 6 jumps at both ends.
HARDSWISH = Piecewise(
    "hardswish",
    (-3.0, 3.0),
    (
        Smooth("hardswish", level(0.0), level(0.0), level(0.0)),
        Smooth(
            "hardswish",
            Curve(lambda z: z * (z + 3) / 6, (math.inf, math.inf), (Station(-1.5, -0.375),)),
            Curve(lambda z: (2 * z + 3) / 6, (-math.inf, math.inf), absolute=ROUNDINGS_4, bounds=(-0.5, 1.5)),
            level(1 / 3, UNIT / 2),
        ),
        Smooth(
            "hardswish", Curve(lambda z: z, (-math.inf, math.inf), absolute=0.0, relative=0.0), level(1.0), level(0.0)
        ),
    ),
)
