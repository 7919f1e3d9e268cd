"""Values of formulas at one point, as fractions: known, or not known at all."""

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

from lipkit.trace.nodes import Activation
from lipkit.trace.nodes.activations.formula_steps import Applied, Combined, Multiplied, Step
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.activations.mish import MISH
from lipkit.trace.nodes.activations.periodic import COS, SIN
from lipkit.trace.nodes.activations.powers import COSH, EXP, EXPM1, LOG, LOG1P, LOG2, LOG10, SINH, exponent_of
from lipkit.trace.nodes.activations.sigmoids import ASINH, ATAN, ERF, SIGMOID, TANH

_AT_ZERO: dict[Activation, Fraction] = {
    **dict.fromkeys((TANH, SIN, SINH, ASINH, ATAN, ERF, EXPM1, LOG1P, GELU, GELU_TANH, MISH), Fraction(0)),
    **dict.fromkeys((EXP, COS, COSH), Fraction(1)),
    SIGMOID: Fraction(1, 2),
}
_AT_ONE: dict[Activation, Fraction] = dict.fromkeys((LOG, LOG2, LOG10), Fraction(0))


def exact_value(steps: Sequence[Step], at: Fraction) -> Fraction | None:
    """The last step at a point, in exact arithmetic; None if it is not known to be a fraction."""
    found: list[Fraction | None] = [at]
    for step in steps:
        match step:
            case Combined(terms, constant):
                values = [None if (v := found[i]) is None else v * Fraction(rate) for i, rate in terms]
                known = [value for value in values if value is not None]
                found.append(sum(known, Fraction(constant)) if len(known) == len(values) else None)
            case Multiplied(first, second):
                u, v = found[first], found[second]
                found.append(None if u is None or v is None else u * v)
            case Applied(activation, inner):
                u = found[inner]
                found.append(None if u is None else _applied(activation, u))
    return found[-1]


def _applied(activation: Activation, u: Fraction) -> Fraction | None:
    exponent = exponent_of(activation)
    if exponent is not None:
        if exponent.is_integer() and (u or exponent > 0) and abs(exponent) <= 64:
            return u ** int(exponent)
        if exponent in (0.5, -0.5) and u >= 0 and (u or exponent > 0):
            root = Fraction(isqrt(u.numerator), isqrt(u.denominator))
            return None if root * root != u else root if exponent > 0 else 1 / root
    if u == 0:
        return _AT_ZERO.get(activation)
    return _AT_ONE.get(activation) if u == 1 else None
