"""Bounds of a function made of steps where its argument is far from 0, as powers of that argument."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lipkit.rounding.slacks import ROUNDINGS_8192
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.activations.formula_steps import Applied, Combined, Multiplied, Step
from lipkit.trace.nodes.activations.powers import EXP, LOG, exponent_of
from lipkit.trace.nodes.activations.sigmoids import ERF, SIGMOID, TANH
from lipkit.trace.nodes.pointwise import Activation

# Where a tail begins.
FAR = 64.0
# exp falls faster than every power of its argument; this one is enough to outweigh what is multiplied by it.
_FALL = 8.0
_INF = math.inf


class Tail(NamedTuple):
    """A quantity that lies in r^power [low, high] for all r = |x| >= FAR; rounded outward by what made it."""

    power: float
    low: float
    high: float


def tail_values(steps: Sequence[Step], side: float) -> tuple[float, float]:
    """Bounds of the last step where side x >= FAR."""
    return _bounds(_walk(steps, side)[-1][0])


def tail_slopes(steps: Sequence[Step], side: float) -> tuple[float, float]:
    """Bounds of the difference quotients of the last step where side x >= FAR."""
    return _bounds(_walk(steps, side)[-1][1])


def _walk(steps: Sequence[Step], side: float) -> list[tuple[Tail, Tail]]:
    """Value and slope of every step, the variable x = side r first."""
    found = [(Tail(1.0, side, side), Tail(0.0, 1.0, 1.0))]
    for step in steps:
        match step:
            case Combined(terms, constant):
                values = [_times(found[i][0], _number(rate)) for i, rate in terms]
                slopes = [_times(found[i][1], _number(rate)) for i, rate in terms]
                found.append((_plus([*values, _number(constant)]), _plus(slopes)))
            case Multiplied(first, second):
                (u, du), (v, dv) = found[first], found[second]
                found.append((_times(u, v), _plus([_times(du, v), _times(u, dv)])))
            case Applied(activation, inner):
                u, du = found[inner]
                value, slope = _apply(activation, u)
                found.append((value, _times(slope, du)))
    return found


def _apply(activation: Activation, u: Tail) -> tuple[Tail, Tail]:
    """Value and slope of an activation of u."""
    exponent = exponent_of(activation)
    if exponent is not None and u.low > 0:
        return _power(u, exponent, 1.0), _power(u, exponent - 1, exponent)
    if exponent is not None and u.high < 0 and exponent.is_integer():
        # A whole power is even or odd.
        even, away = 1.0 if exponent % 2 == 0 else -1.0, Tail(u.power, -u.high, -u.low)
        return _power(away, exponent, even), _power(away, exponent - 1, -even * exponent)
    bounds = _bounds(u)
    value, slope = (_range(fn, bounds) for fn in (activation.values, activation.slopes))
    if activation is LOG and u.low > 0:
        slope = _power(u, -1.0, 1.0)
    falling = _falling(activation, u)
    if falling is not None:
        slope = falling
        value = falling if activation is EXP or (activation is SIGMOID and u.high < 0) else value
    if not (math.isfinite(value.low) and math.isfinite(value.high)) and u.power > 0 and (u.low > 0 or u.high < 0):
        # From the near end on, by the slopes: v = f(u0) + quotient (u - u0).
        near = bounds[0] if u.low > 0 else bounds[1]
        start = _range(activation.values, (near, near))
        value = _plus([start, _times(_range(activation.slopes, bounds), _plus([u, _number(-near)]))])
    return value, slope


def _falling(activation: Activation, u: Tail) -> Tail | None:
    """A slope that falls exponentially with u: exp(u) for u -> -inf, and for sigmoid, tanh and erf (from |u| = 1 on)

    sigmoid' <= exp(-|u|),   tanh' <= 4 exp(-2 |u|),   erf' <= 2 pi^(-1/2) exp(-u^2) <= 1.13 exp(-|u|).
    """
    rates: dict[Activation, tuple[float, float]] = {
        EXP: (1.0, 1.0),
        SIGMOID: (1.0, 1.0),
        TANH: (4.0, 2.0),
        ERF: (1.13, 1.0),
    }
    if activation not in rates or u.power <= 0 or not (u.high < 0 or (u.low > 0 and activation is not EXP)):
        return None
    factor, rate = rates[activation]
    # exp(-c r^k) r^8 falls once c k r^k >= 8, so it is at most what it is at the beginning of the tail.
    c = rate * (-u.high if u.high < 0 else u.low) * (1 - ROUNDINGS_8192)
    if c * u.power * _scale(u.power) < _FALL or c * _scale(u.power) < 1:
        return None
    most = factor * FAR**_FALL * math.exp(-c * _scale(u.power))
    return Tail(-_FALL, 0.0, most * (1 + ROUNDINGS_8192) + 1e-300)


def _power(u: Tail, exponent: float, factor: float) -> Tail:
    try:
        ends = sorted((factor * u.low**exponent, factor * u.high**exponent))
    except OverflowError:
        ends = [-_INF, _INF]
    return _outward(Tail(u.power * exponent, ends[0], ends[1]))


def _scale(power: float) -> float:
    """FAR^power, or nearer to 1 where that would leave the range of floats: a weaker statement for r >= FAR."""
    return FAR ** max(-150.0, min(150.0, power))


def _range(fn: Callable[[Tensor, Tensor], Interval], bounds: tuple[float, float]) -> Tail:
    low, high = fn(*(torch.tensor(end, dtype=torch.float64) for end in bounds))
    return Tail(0.0, float(low), float(high))


def _number(value: float) -> Tail:
    return Tail(0.0, value, value)


def _bounds(u: Tail) -> tuple[float, float]:
    """Where r^power [low, high] lies for r >= FAR."""
    scale = _scale(u.power)
    if u.power == 0:
        low, high = u.low, u.high
    elif u.power > 0:
        low = u.low * scale if u.low >= 0 else -_INF
        high = u.high * scale if u.high <= 0 else _INF
    else:
        low, high = min(0.0, u.low * scale), max(0.0, u.high * scale)
    found = _outward(Tail(0.0, low, high))
    return found.low, found.high


def _times(u: Tail, v: Tail) -> Tail:
    corners = [0.0 if 0.0 in (x, y) else x * y for x in (u.low, u.high) for y in (v.low, v.high)]
    return _outward(Tail(u.power + v.power, min(corners), max(corners)))


def _plus(parts: Sequence[Tail]) -> Tail:
    """The sum, in the largest power; a smaller one shrinks by r^(difference) <= FAR^(difference)."""
    kept = [part for part in parts if (part.low, part.high) != (0.0, 0.0)]
    if not kept:
        return _number(0.0)
    power = max(part.power for part in kept)
    lows, highs = [], []
    for part in kept:
        shrink = _scale(part.power - power) * (1 + ROUNDINGS_8192)
        lows.append(part.low if part.power == power else min(0.0, part.low * shrink))
        highs.append(part.high if part.power == power else max(0.0, part.high * shrink))
    slack = ROUNDINGS_8192 * max([abs(end) for end in (*lows, *highs) if math.isfinite(end)], default=0.0)
    low, high = sum(lows), sum(highs)
    return Tail(power, -_INF if math.isnan(low) else low - slack, _INF if math.isnan(high) else high + slack)


def _outward(u: Tail) -> Tail:
    low = -_INF if math.isnan(u.low) or u.low == _INF else u.low - ROUNDINGS_8192 * abs(u.low)
    high = _INF if math.isnan(u.high) or u.high == -_INF else u.high + ROUNDINGS_8192 * abs(u.high)
    return Tail(u.power, low, high)
