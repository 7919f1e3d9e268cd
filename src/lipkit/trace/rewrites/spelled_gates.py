"""Activations that a model spells out: x sigmoid(x), x relu6(x + 3) / 6, 0.5 x (1 + erf(x / sqrt 2)) and others."""

import math

from lipkit.linops import LinearOperator, Reshape
from lipkit.rounding.slacks import ROUNDINGS_4
from lipkit.trace.network import Network
from lipkit.trace.nodes import Activation, PiecewiseLinear, Pointwise
from lipkit.trace.nodes.activations.gated import GELU, HARDSWISH, swish
from lipkit.trace.nodes.activations.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.activations.mish import MISH
from lipkit.trace.nodes.activations.powers import RECIPROCAL, power
from lipkit.trace.nodes.activations.sigmoids import ERF, HARDSIGMOID, SIGMOID, SOFTSIGN, TANH, TANHSHRINK, softplus
from lipkit.trace.nodes.pointwise import ABS
from lipkit.trace.rewrites.entrywise_functions import Combination, Entries
from lipkit.trace.rewrites.exchange_rows import Rewriting

# Constants of a formula may be rounded twice by the way it is written.
_ROUNDED = ROUNDINGS_4


def merge_gates(network: Network) -> Network:
    """The same function with products of x and a gate of x as the activations they are.

    A product has no constant on the whole space, while x sigmoid(x) has: SiLU. Known are x sigmoid(b x), hard swish
    by relu6 or hardsigmoid, GELU by erf and by tanh, Mish, softsign x / (1 + |x|), and x - tanh(x), each with any
    number in front.
    """
    entries, rewriting = Entries(network), Rewriting(network)
    for k, node in enumerate(network.nodes, start=1):
        found = _gate(entries, k) or _shrink(entries, k)
        if found is not None:
            activation, x, factor = found
            shape = node.target
            rewriting.replace(k, Pointwise(activation, shape), {x: Reshape(network.shape_of(x), shape)})
            if factor != 1:
                scaled: LinearOperator = Reshape(shape, shape) * factor
                rewriting.redirect(k, k, scaled)
    return rewriting.result()


Found = tuple[Activation, int, float]


def _gate(entries: Entries, k: int) -> Found | None:
    """(f, x, factor) if row k is factor f(x), a product of x and a gate of x."""
    rows = entries.factors(k)
    if rows is None or math.prod(entries.network.nodes[k - 1].target) != math.prod(entries.network.shape_of(rows[0])):
        return None
    if math.prod(entries.network.shape_of(rows[0])) != math.prod(entries.network.shape_of(rows[1])):
        return None
    for first, second in (rows, rows[::-1]):
        carrier, gate = entries.carrier(first), entries.value(second)
        if carrier is None or gate.single is None:
            continue
        x, base, factor = carrier
        known = _activation(entries, base, gate)
        if known is not None:
            return known[0], x, factor * known[1]
    return None


def _activation(entries: Entries, x: Combination, gate: Combination) -> tuple[Activation, float] | None:
    """(f, factor) with x times the gate = factor f(x)."""
    assert gate.single is not None
    row, factor = gate.single
    activation, inner = entries.activation(row), entries.input_of(row) if row else None
    if activation is None or inner is None:
        return None
    if gate.constant == factor:
        # factor (1 + g): the two forms of GELU.
        return _gelu(entries, x, activation, inner, factor)
    if gate.constant:
        return None
    direct = inner.over(x)
    if direct is not None:
        rate, shift = direct
        if activation is SIGMOID and rate > 0 and shift == 0:
            return swish(rate), factor
        if rate == 1 and shift == 3 and _is_relu6(activation):
            return HARDSWISH, 6 * factor
        if activation is HARDSIGMOID and rate == 1 and shift == 0:
            return HARDSWISH, factor
        return None
    if inner.single is None or inner.single[1] != 1:
        return None
    source = inner.single[0]
    if source == 0 or entries.input_of(source) != x:
        return None
    if activation is TANH and inner.constant == 0 and entries.activation(source) is softplus(1.0):
        return MISH, factor
    if activation is RECIPROCAL and inner.constant == 1 and entries.activation(source) is ABS:
        return SOFTSIGN, factor
    return None


def _gelu(
    entries: Entries, x: Combination, activation: Activation, inner: Combination, factor: float
) -> tuple[Activation, float] | None:
    if inner.constant:
        return None
    direct = inner.over(x)
    if activation is ERF and direct is not None:
        return (GELU, 2 * factor) if _close(direct[0], math.sqrt(0.5)) else None
    cubic = [(row, rate) for row, rate in inner.terms if row and entries.activation(row) is power(3.0)]
    if activation is not TANH or len(cubic) != 1 or entries.input_of(cubic[0][0]) != x:
        return None
    direct = Combination(tuple(term for term in inner.terms if term != cubic[0])).over(x)
    root = math.sqrt(2 / math.pi)
    known = direct is not None and _close(direct[0], root) and _close(cubic[0][1], root * 0.044715)
    return (GELU_TANH, 2 * factor) if known else None


def _shrink(entries: Entries, k: int) -> Found | None:
    """Row k as factor (x - tanh x)."""
    node = entries.network.nodes[k - 1]
    if not (node.is_identity and len(entries.network.row(k)) == 2):
        return None
    found = entries.input_of(k)
    if found is None or found.constant or len(found.terms) != 2:
        return None
    for (x, factor), (curved, minus) in (found.terms, found.terms[::-1]):
        if (
            entries.activation(curved) is TANH
            and minus == -factor
            and entries.input_of(curved) == Combination(((x, 1.0),))
        ):
            return TANHSHRINK, x, factor
    return None


def _is_relu6(activation: Activation) -> bool:
    return (
        isinstance(activation, PiecewiseLinear)
        and activation.knots == (0.0, 6.0)
        and activation.gradients == (0.0, 1.0, 0.0)
        and activation.at_knots() == (0.0, 6.0)
    )


def _close(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _ROUNDED * wanted
