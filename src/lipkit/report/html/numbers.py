"""Numbers as a page prints them: rounded to the side that keeps what they promise."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

from lipkit.bound import Kind

# Above one by less than this, a norm has too few digits in a table to tell it from one.
_LITTLE = 5e-4


def digits(value: float, kind: Kind, count: int = 4) -> str:
    """So many digits of a number, rounded to the side of its kind."""
    if not math.isfinite(value) or not value:
        return "unlimited" if value == math.inf else f"{value:g}"
    # A float is a decimal number exactly, so the side is the side of the number itself.
    return _to_side(Decimal(value), kind, count)


def constant(log_value: float, kind: Kind, count: int = 4) -> str:
    """exp(log_value), rounded to the side of its kind; a power of ten where float64 ends."""
    if log_value == -math.inf:
        return "0"
    # Forty digits: the exponential is then as exact as the logarithm.
    wide = Context(prec=40)
    if -667 < log_value < 667:
        return _to_side(wide.exp(Decimal(log_value)), kind, count)
    power = wide.divide(Decimal(log_value), wide.ln(Decimal(10)))
    return f"10^{power.quantize(Decimal('0.0001'), rounding=_rounding(kind))}"


def layer_norm(log_value: float, kind: Kind, count: int = 4) -> str:
    """exp(log_value) of one layer: an EXACT one to nearest, because it is the number itself, others to their side.

    Upper bounds a little above one are written as 1 + what they exceed it by: 1.001 would be another layer.
    """
    if kind is Kind.UPPER and 0 < log_value < _LITTLE:
        return f"1 + {_to_side(Context(prec=40).exp(Decimal(log_value)) - 1, kind, 2)}"
    return constant(log_value, Kind.ESTIMATE if kind is Kind.EXACT else kind, count)


def _to_side(number: Decimal, kind: Kind, count: int) -> str:
    return f"{float(Context(prec=count, rounding=_rounding(kind)).plus(number)):.{count}g}"


def _rounding(kind: Kind) -> str:
    return {1.0: ROUND_CEILING, -1.0: ROUND_FLOOR}.get(kind.side, ROUND_HALF_EVEN)


def norm_in_words(p: float, what: str) -> str:
    """A length in l_p, explained to a reader who has not met the notation; `what` is one entry of an input."""
    if p == 2:
        return f"the square root of the sum of the squared changes of all {what}s"
    if p == 1:
        return f"the sum of the changes of all {what}s, without their signs"
    return f"the largest change of a single {what}" if p == math.inf else f"measured in l{p:g}"
