"""Weighted means that a model spells out: a + g (b - a) and (1 - g) a + g b, as in a GRU or a highway layer."""

import math
from typing import final

import torch

from lipkit.linops import Index, LinearOperator
from lipkit.trace.network import Network
from lipkit.trace.nodes import Interpolation, Product
from lipkit.trace.rewrites.entrywise_functions import Combination, Entries
from lipkit.trace.rewrites.exchange_rows import Rewriting

# The gate, and the two values between which it chooses.
Found = tuple[int, int, int]


def merge_interpolations(network: Network) -> Network:
    """The same function with weighted means as one node each.

    A sum a + g (b - a) does not know that it stays between a and b while g lies in [0, 1]; ranges through a GRU would
    grow with every step. Where b or a is zero only one product is left, and it stays as it is.
    """
    entries, rewriting = _Means(network), Rewriting(network)
    for k, node in enumerate(network.nodes, start=1):
        found = entries.mean(k) if node.is_identity else None
        if found is not None:
            shape, row = node.target, dict[int, LinearOperator]()
            for place, source in enumerate(found):
                op = _at(place, math.prod(shape), network.shape_of(source))
                row[source] = row[source] + op if source in row else op
            rewriting.replace(k, Interpolation(shape), row)
    return rewriting.result()


def _at(place: int, count: int, shape: tuple[int, ...]) -> Index:
    slots = torch.full((3, count), -1)
    slots[place] = torch.arange(count)
    return Index(slots.flatten(), shape)


@final
class _Means:
    """Finds weighted means among the rows of a network."""

    def __init__(self, network: Network) -> None:
        self._entries = Entries(network)
        self._network = network
        # The first row that has a value which is a combination of others.
        self._rows: dict[Combination, int] = {}
        for k, node in enumerate(network.nodes, start=1):
            if node.is_identity:
                self._rows.setdefault(self._entries.value(k), k)

    def mean(self, k: int) -> Found | None:
        """(g, a, b) if row k is (1 - g) a + g b."""
        whole = self._entries.input_of(k) if len(self._network.row(k)) == 2 else None
        if whole is None or whole.constant:
            return None
        products = [(row, rate) for row, rate in whole.terms if rate == 1 and self._is_plain(row, k)]
        for row, _ in products:
            rest = Combination(tuple(term for term in whole.terms if term[0] != row))
            for gate, values in self._ways(row):
                found = self._by_difference(gate, values, rest) or self._by_two(gate, values, rest, k)
                if found is not None:
                    return found
        return None

    def _is_plain(self, row: int, k: int) -> bool:
        """Whether a row is a product of two values, each as large as row k."""
        node = self._network.nodes[row - 1] if row else None
        size = math.prod(self._network.shape_of(k))
        return isinstance(node, Product) and math.prod(node.left) == math.prod(node.right) == size

    def _ways(self, row: int) -> list[tuple[int, int]]:
        found = self._entries.factors(row)
        return [] if found is None else [found, (found[1], found[0])]

    def _by_difference(self, gate: int, values: int, rest: Combination) -> Found | None:
        """a + g (b - a): the rest of the sum is a, so b is what is multiplied plus it."""
        a = self._row(rest)
        other = self._row(_sum(self._entries.value(values), rest))
        return (gate, a, other) if a is not None and other is not None else None

    def _by_two(self, gate: int, values: int, rest: Combination, k: int) -> Found | None:
        """g b + (1 - g) a: the rest of the sum is a product too, with 1 - g."""
        if rest.single is None or rest.single[1] != 1 or rest.constant or not self._is_plain(rest.single[0], k):
            return None
        for other, a in self._ways(rest.single[0]):
            if _sum(self._entries.value(other), self._entries.value(gate)) == Combination((), 1.0):
                return gate, a, values
        return None

    def _row(self, value: Combination) -> int | None:
        """A row with this value."""
        if value.single is not None and value.single[1] == 1 and not value.constant:
            return value.single[0]
        return self._rows.get(value)


def _sum(first: Combination, second: Combination) -> Combination:
    total = dict(first.terms)
    for row, rate in second.terms:
        total[row] = total.get(row, 0.0) + rate
    terms = tuple(sorted((row, rate) for row, rate in total.items() if rate))
    return Combination(terms, first.constant + second.constant)
