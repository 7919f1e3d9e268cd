"""Norms of windows that a model spells out: (sum of x^q)^(1/q) for even q, as in LPPool and sqrt(sum(x^2))."""

from collections.abc import Iterator
from fractions import Fraction

import torch
from jaxtyping import Int64
from torch import Tensor

from lipkit.linops import AvgPool, Index, LinearOperator, Permute, Reshape, Scaled
from lipkit.linops._base import Compose
from lipkit.trace.network import Network
from lipkit.trace.nodes import VectorNorm
from lipkit.trace.nodes.activations.powers import exponent_of
from lipkit.trace.rewrites.entrywise_functions import Entries
from lipkit.trace.rewrites.exchange_rows import Rewriting

# A root on Python floats is within two units in the last place; rounded up, so that constants stay upper bounds.
_ROOT = 1 + 2.0**-50


def merge_norms(network: Network) -> Network:
    """The same function with roots of sums of even powers as norms of windows.

    An even power has no constant on the whole space, and a root has none at 0; together they are a norm, which has.
    Windows that overlap repeat entries, and the operator that does so carries the overlap.
    """
    entries, rewriting = Entries(network), Rewriting(network)
    for k, node in enumerate(network.nodes, start=1):
        order = _order(entries, k, root=True)
        found = None if order is None else _operators_to_powers(entries, k, order)
        if order is None or found is None:
            continue
        powers, operators = found
        sums = _windows(operators)
        into = network.row(powers)
        if sums is None or len(into) != 1 or powers in network.biases:
            continue
        windows, weight = sums
        ((source, op),) = into.items()
        moved = Index(windows, op.out_shape) @ op
        rewriting.replace(
            k,
            VectorNorm(tuple(windows.shape), float(order)),
            {source: moved if weight == 1 else moved * (float(weight) ** (1 / order) * _ROOT)},
        )
        rewriting.redirect(k, k, Reshape((len(windows), 1), node.target))
    return rewriting.result()


def _order(entries: Entries, k: int, root: bool) -> int | None:
    """The even number q of a row that takes the q-th power, or the q-th root."""
    activation = entries.activation(k)
    exponent = None if activation is None else exponent_of(activation)
    if exponent is None or exponent <= 0:
        return None
    order = round(1 / exponent if root else exponent)
    same = exponent == (1 / order if root else order) if order else False
    return order if same and order % 2 == 0 else None


def _operators_to_powers(entries: Entries, k: int, order: int) -> tuple[int, list[LinearOperator]] | None:
    """The row of powers behind the root in row k, and the operators between them, first one first."""
    operators: list[LinearOperator] = []
    row = k
    while row == k or entries.is_identity(row):
        into = entries.network.row(row)
        if len(into) != 1 or row in entries.network.biases:
            return None
        ((row, op),) = into.items()
        operators = [*_flat(op), *operators]
        if row == 0:
            return None
    return (row, operators) if _order(entries, row, root=False) == order else None


def _flat(op: LinearOperator) -> Iterator[LinearOperator]:
    if isinstance(op, Compose):
        yield from _flat(op.inner)
        yield from _flat(op.outer)
    elif isinstance(op, Scaled):
        yield from _flat(op.inner)
        yield Scaled(op.factor, Reshape(op.out_shape, op.out_shape))
    else:
        yield op


def _windows(operators: list[LinearOperator]) -> tuple[Int64[Tensor, "count width"], Fraction] | None:
    """The positions that each entry of the result sums, and the weight of all of them."""
    first = operators[0].in_shape
    places = torch.arange(torch.Size(first).numel()).reshape(*first, 1)
    weight, pools = Fraction(1), 0
    for op in operators:
        width = places.shape[-1]
        if isinstance(op, Scaled):
            if op.factor.requires_grad or not op.factor.item() > 0:
                return None
            weight *= Fraction(op.factor.item())
        elif isinstance(op, Reshape):
            places = places.reshape(*op.target, width)
        elif isinstance(op, Permute):
            places = places.permute(*op.order, len(op.order))
        elif isinstance(op, AvgPool) and not any(op.padding) and op.divisor > 0 and not pools:
            pools, weight = 1, weight / op.divisor
            places = places[..., 0]
            for axis, (kernel, stride) in enumerate(zip(op.kernel, op.stride, strict=True), start=1):
                places = places.unfold(axis, kernel, stride)
            places = places.flatten(len(op.spatial) + 1)
        else:
            return None
    return (places.reshape(-1, places.shape[-1]).contiguous(), weight) if pools else None
