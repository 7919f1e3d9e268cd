"""Linear functions of a program's variables, with the rounding errors of computing them."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.dense_network import Block
from lipkit.rounding.float64 import gamma, norm_up, product_error
from lipkit.rounding.slacks import UNIT


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Linear functions of the variables `start`, `start + 1`, ..., one for each row of `matrix`.

    The true coefficients differ by at most `relative` |matrix| entry by entry, and by `error` in the spectral norm
    besides.
    """

    start: int
    matrix: Float64[Tensor, "rows cols"]
    relative: float = 0.0
    error: float = 0.0

    @cached_property
    def span(self) -> slice:
        """The variables they depend on."""
        return slice(self.start, self.start + self.matrix.shape[1])

    @cached_property
    def size(self) -> float:
        """The Frobenius norm, rounded up."""
        return float(norm_up(self.matrix, 2))

    @property
    def uncertainty(self) -> float:
        """The spectral norm of everything that may be wrong, or more."""
        return (self.relative * self.size + self.error) * (1 + gamma(8))

    def times(self, factor: Float64[Tensor, " rows"]) -> "Rows":
        """Each row times a number of its own."""
        largest = float(factor.abs().max()) if len(factor) else 0.0
        return Rows(self.start, factor[:, None] * self.matrix, self.relative + 2 * UNIT, self.error * largest)

    def chosen(self, which: Tensor) -> "Rows":
        """Some of the rows."""
        return Rows(self.start, self.matrix[which], self.relative, self.error)


def unit_rows(start: int, count: int) -> Rows:
    """`count` of the variables themselves."""
    return Rows(start, torch.eye(count, dtype=torch.float64))


def image(block: Block, rows: Rows) -> Rows:
    """block @ rows."""
    size, width = float(norm_up(block.matrix, 2)), rows.size
    rounding = product_error(block.matrix.shape[1], torch.float64) * size * width
    error = block.error * (width + rows.uncertainty) + size * rows.uncertainty + rounding
    return Rows(rows.start, block.matrix @ rows.matrix, 0.0, error * (1 + gamma(16)))


def total(terms: list[Rows]) -> Rows:
    """The sum; without rounding where no variable occurs twice."""
    if len(terms) == 1:
        return terms[0]
    start, stop = min(t.span.start for t in terms), max(t.span.stop for t in terms)
    result = torch.zeros(len(terms[0].matrix), stop - start, dtype=torch.float64)
    for term in terms:
        result[:, term.span.start - start : term.span.stop - start] += term.matrix
    error = sum(term.error for term in terms) * (1 + gamma(len(terms)))
    if sum(term.matrix.shape[1] for term in terms) <= stop - start and _disjoint(terms):
        return Rows(start, result, max(term.relative for term in terms), error)
    rounding = sum((gamma(len(terms)) + term.relative) * term.size for term in terms)
    return Rows(start, result, 0.0, (error + rounding) * (1 + gamma(16)))


def _disjoint(terms: list[Rows]) -> bool:
    ordered = sorted(terms, key=lambda term: term.start)
    return all(a.span.stop <= b.start for a, b in pairwise(ordered))
