"""Powers, exponentials and logarithms: unbounded slopes on the line, finite ones on intervals."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.trace.nodes.activations.curve import SLACK, Curve, Station, level
from lipkit.trace.nodes.activations.smooth import Smooth

_INF = math.inf
# These functions are accurate relative to their values; what underflows is covered by this much.
_TINY = 2.0**-1000
_EXPONENT_OF: dict[object, float] = {}


@cache
def power(exponent: float, label: str = "") -> Smooth:
    """z^e: on the line for a whole exponent (without 0 if it is negative), on [0, inf) for any other.

    f' = e z^(e-1) and f'' = e (e-1) z^(e-2) are powers too, each monotone on either side of 0.
    """
    e = exponent
    if not math.isfinite(e):
        raise ArgumentError(f"A power needs a finite exponent, got {exponent}.")
    curves = _monomial(1.0, e), _monomial(e, e - 1), _monomial(e * (e - 1), e - 2)
    found = Smooth(label or f"pow({e:g})", *curves)
    _EXPONENT_OF[found] = e
    return found


def exponent_of(activation: object) -> float | None:
    """The exponent of what `power` gave; None for anything else."""
    return _EXPONENT_OF.get(activation)


def _monomial(factor: float, exponent: float) -> Curve:
    if factor == 0 or exponent == 0:
        return level(factor)

    def at(z: Tensor) -> Tensor:
        return factor * z**exponent

    far = factor * _INF if exponent > 0 else 0.0
    if not exponent.is_integer():
        return Curve(at, (-_INF, far), start=0.0, absolute=_TINY)
    if exponent < 0:
        return Curve(at, (0.0, 0.0), pole=0.0, absolute=_TINY)
    even = exponent % 2 == 0
    # Doubling rounds nothing, so the slope of a square is not negative where its argument is not.
    lost = 0.0 if (factor, exponent) == (2.0, 1.0) else _TINY
    return Curve(at, (far if even else -far, far), (Station(0.0, 0.0, blur=0.0),) if even else (), absolute=lost)


def exponential(base: float) -> Smooth:
    """base^z for base > 0; f' = log(base) base^z and f'' = log(base)^2 base^z."""
    if not (base > 0 and base != 1 and math.isfinite(base)):
        raise ArgumentError(f"An exponential needs a finite base > 0 other than 1, got {base}.")
    rate = math.log(base)

    def curve(factor: float) -> Curve:
        limits = (0.0, factor * _INF) if rate > 0 else (factor * _INF, 0.0)
        return Curve(lambda z: factor * torch.pow(base, z), limits, absolute=_TINY)

    return Smooth(f"pow({base:g}, .)", curve(1.0), curve(rate), curve(rate * rate))


def logarithm(label: str, fn: Callable[[Tensor], Tensor], base: float, shift: float = 0.0) -> Smooth:
    """log(z + shift) in some base, on [-shift, inf): f' = 1 / (log(base) (z + shift)), f'' = -f' / (z + shift)."""
    rate = 1 / math.log(base)
    return Smooth(
        label,
        # Near its root a logarithm is small but exact to its own last place; z + shift is rounded once.
        Curve(fn, (-_INF, _INF), start=-shift, absolute=_TINY),
        Curve(lambda z: rate / (z + shift), (_INF, 0.0), start=-shift, absolute=_TINY, relative=2 * SLACK),
        Curve(lambda z: -rate / (z + shift) ** 2, (-_INF, 0.0), start=-shift, absolute=_TINY, relative=2 * SLACK),
    )


EXP = Smooth("exp", *(Curve(torch.exp, (0.0, _INF), absolute=_TINY),) * 3)
EXPM1 = Smooth("expm1", Curve(torch.expm1, (-1.0, _INF)), EXP.slope, EXP.bend)
SINH = Smooth(
    "sinh",
    Curve(torch.sinh, (-_INF, _INF)),
    Curve(torch.cosh, (_INF, _INF), (Station(0.0, 1.0),)),
    Curve(torch.sinh, (-_INF, _INF)),
)
COSH = Smooth(
    "cosh",
    Curve(torch.cosh, (_INF, _INF), (Station(0.0, 1.0),)),
    Curve(torch.sinh, (-_INF, _INF)),
    Curve(torch.cosh, (_INF, _INF), (Station(0.0, 1.0),)),
)
SQUARE = power(2.0, "square")
SQRT = power(0.5, "sqrt")
RSQRT = power(-0.5, "rsqrt")
RECIPROCAL = power(-1.0, "reciprocal")
LOG = logarithm("log", torch.log, math.e)
LOG2 = logarithm("log2", torch.log2, 2.0)
LOG10 = logarithm("log10", torch.log10, 10.0)
LOG1P = logarithm("log1p", torch.log1p, math.e, 1.0)
