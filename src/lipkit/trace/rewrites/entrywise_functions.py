"""Values as entrywise functions of earlier ones, read off the rows of a network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

import torch
from torch import Tensor

from lipkit.linops import Index, LinearOperator, Reshape, Scaled
from lipkit.trace.network import Network
from lipkit.trace.nodes import Activation, MatrixProduct, Pointwise, Product
from lipkit.trace.rewrites.exchange_rows import Numbering


@final
@dataclass(frozen=True)
class Combination:
    """sum of factor * value over rows of the network, entry by entry, plus one number for all entries.

    `exact` says that no rounding was needed to find these numbers.
    """

    terms: tuple[tuple[int, float], ...]
    constant: float = 0.0
    exact: bool = field(default=True, compare=False)

    def over(self, base: "Combination") -> tuple[float, float] | None:
        """(rate, shift) with this = rate base + shift, if there are such numbers."""
        mine, theirs = dict(self.terms), dict(base.terms)
        if mine.keys() != theirs.keys() or not mine or base.constant:
            return None
        rates = {mine[row] / theirs[row] for row in mine}
        return (rates.pop(), self.constant) if len(rates) == 1 else None

    @property
    def single(self) -> tuple[int, float] | None:
        """The row and its factor, if there is just one."""
        return self.terms[0] if len(self.terms) == 1 else None


@final
class Entries:
    """Reads a network in which nothing is fused yet."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.number = Numbering(network)
        self._rows = network.rows()
        self._known: dict[int, Combination | None] = {}
        self._first: dict[int, int] = {}
        for k in range(network.sink):
            self._first.setdefault(self.number.value(k), k)

    def value(self, k: int) -> Combination:
        """y_k as a combination of values that are no combinations themselves."""
        found = self.input_of(k) if self.is_identity(k) else None
        # The same value under two row numbers is one term.
        return Combination(((self._first[self.number.value(k)], 1.0),)) if found is None else found

    def input_of(self, k: int) -> Combination | None:
        """z_k as such a combination; None if row k does more than to scale, add and shift by a number."""
        if k not in self._known:
            self._known[k] = self._read(k)
        return self._known[k]

    def _read(self, k: int) -> Combination | None:
        shift = _shift(self.network.biases.get(k))
        factors = {j: factor_of(op) for j, op in self._rows[k].items()}
        if shift is None or not factors or None in factors.values():
            return None
        total: dict[int, float] = {}
        exact = True
        for j, factor in factors.items():
            part = self.value(j)
            assert factor is not None
            moved = shift + factor * part.constant
            exact = exact and part.exact and _is_exact(moved, shift, factor, part.constant)
            shift = moved
            for row, inner in part.terms:
                known = total.get(row, 0.0)
                total[row] = known + factor * inner
                exact = exact and _is_exact(total[row], known, factor, inner)
        # Terms that cancel are no part of the value, and must not be compared with anything.
        return Combination(tuple(sorted((row, factor) for row, factor in total.items() if factor)), shift, exact)

    def fixed(self, k: int) -> float | None:
        """The number that all entries of y_k are, if they do not depend on the input."""
        return _shift(self.network.biases.get(k)) if self.is_identity(k) and not self._rows[k] else None

    def carrier(self, k: int) -> tuple[int, Combination, float] | None:
        """(row, its value, factor) with y_k = factor times that value; a sum is a value of its own."""
        found = self.value(k)
        if found.constant:
            return None
        if found.single is None:
            return k, found, 1.0
        row, factor = found.single
        return row, Combination(((row, 1.0),)), factor

    def is_identity(self, k: int) -> bool:
        """Whether row k applies no function."""
        node = self.network.nodes[k - 1] if k else None
        return node is not None and node.is_identity

    def activation(self, k: int) -> Activation | None:
        """The scalar function that row k applies, if it is one."""
        node = self.network.nodes[k - 1] if k else None
        return node.activation if isinstance(node, Pointwise) and not node.is_identity else None

    def same(self, first: int, second: int) -> bool:
        """Whether two rows have the same value."""
        return self.number.value(first) == self.number.value(second)

    def factors(self, k: int) -> tuple[int, int] | None:
        """The rows whose values row k multiplies; None if it is no product of two joined values."""
        node = self.network.nodes[k - 1]
        if isinstance(node, Product):
            sizes = math.prod(node.left), math.prod(node.right)
        elif isinstance(node, MatrixProduct):
            sizes = node.groups * node.rows * node.inner, node.groups * node.inner * node.cols
        else:
            return None
        found = self.joined(k, sizes)
        return None if found is None else (found[0], found[1])

    def joined(self, k: int, sizes: Sequence[int]) -> list[int] | None:
        """The rows whose values, of these sizes, row k joins to one vector; None if that is not all it does."""
        row = self._only_source(k)
        if row is None or row in self.network.biases:
            return None
        whole, start, found = torch.arange(sum(sizes)), 0, list[int]()
        for size in sizes:
            inside = (whole >= start) & (whole < start + size)
            at = self._at(row, torch.where(inside, whole - start, -1))
            if at is None:
                return None
            found.append(at)
            start += size
        return found

    def _at(self, joined: int, slot: Tensor) -> int | None:
        for j, op in self._rows[joined].items():
            if isinstance(op, Index) and torch.equal(op.index.flatten().cpu(), slot):
                return j
        return None

    def _only_source(self, k: int) -> int | None:
        if k in self.network.biases or len(self._rows[k]) != 1:
            return None
        ((j, op),) = self._rows[k].items()
        return j if isinstance(op, Reshape) and j else None


def _is_exact(found: float, start: float, factor: float, value: float) -> bool:
    """Whether start + factor value is this number in exact arithmetic."""
    if not all(map(math.isfinite, (found, start, factor, value))):
        return False
    return Fraction(found) == Fraction(start) + Fraction(factor) * Fraction(value)


def factor_of(op: LinearOperator) -> float | None:
    """The number that an operator multiplies every entry by, if that is all it does."""
    if isinstance(op, Reshape):
        return 1.0
    if isinstance(op, Scaled):
        inner = factor_of(op.inner)
        # A factor that is learned must stay live.
        return None if inner is None or op.factor.requires_grad else inner * op.factor.item()
    return None


def _shift(bias: Tensor | None) -> float | None:
    if bias is None:
        return 0.0
    if bias.requires_grad or bias.numel() == 0:
        return None
    first = bias.flatten()[0]
    return first.item() if bool((bias == first).all()) else None
