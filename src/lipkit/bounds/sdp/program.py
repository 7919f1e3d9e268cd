"""The linear matrix inequality behind LipSDP: linear functions of its variables, and quadratic forms of them."""

import enum
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64
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


class Multipliers(enum.Enum):
    """Which quadratic constraints get a multiplier of their own; the value is how it is said."""

    PER_NEURON = "one multiplier per neuron"
    PER_LAYER = "one multiplier per layer"


@final
@dataclass(frozen=True, eq=False)
class Constraint:
    """sum_i tau_(g_i) z_i^2 >= sum_i tau_(h_i) w_i^2 for every tau >= 0: what is known of node `node`.

    `into` are the z_i and `rest` the w_i as functions of the variables; `group` and `rest_group` are g and h. `own` are
    the node's variables: the values of its entries `neurons` where `direct`, their rests w_i elsewhere.
    """

    node: int
    into: Rows
    rest: Rows
    group: Int64[Tensor, " z"]
    rest_group: Int64[Tensor, " w"]
    own: slice
    neurons: Int64[Tensor, " w"]
    direct: Bool[Tensor, " w"]


@final
@dataclass(frozen=True, eq=False)
class Layer:
    """sum_i sign_i point[group_i] m_i^2, where m_i are the rows of `matrix` in the variables `span`.

    First the rests of a node, then what goes into it.
    """

    span: slice
    matrix: Float64[Tensor, "rows cols"]
    sign: Float64[Tensor, " rows"]
    group: Int64[Tensor, " rows"]

    @cached_property
    def entries(self) -> slice:
        """The entries of the point that occur."""
        return slice(int(self.group.min()), int(self.group.max()) + 1)


@final
@dataclass(frozen=True, eq=False)
class Program:
    """minimise rho over tau with  P = rho |x|^2 + sum_g tau_g (|w_g|^2 - |z_g|^2) - |output|^2 >= 0.

    If P is positive semidefinite as a quadratic form of the variables (the input x, and one for each nonlinear neuron),
    then sqrt(rho) bounds the constant of the network, in units of 2^exponent. P >= 0 implies tau >= 0 and rho >= 0.
    Points are (rho, tau).
    """

    size: int
    inputs: int
    constraints: tuple[Constraint, ...]
    output: Rows
    groups: int
    exponent: int

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The linear part of P as signed squares, one layer of them for each constraint."""
        return tuple(_layer(one) for one in self.constraints)

    def linear(self, point: Float64[Tensor, " groups"]) -> Float64[Tensor, "n n"]:
        """The part of P that is linear in (rho, tau)."""
        form = torch.zeros(self.size, self.size, dtype=torch.float64)
        form.diagonal()[: self.inputs] += point[0]
        for layer in self.layers:
            weight = layer.sign * point[layer.group]
            form[layer.span, layer.span] += layer.matrix.mT @ (weight[:, None] * layer.matrix)
        return form

    def columns(self) -> Float64[Tensor, "n2 groups"]:
        """The linear part of P as a matrix that takes a point to the entries of P, row by row."""
        return torch.stack([self.linear(unit).reshape(-1) for unit in torch.eye(self.groups + 1).double()], 1)

    def matrix(self, point: Float64[Tensor, " groups"]) -> Float64[Tensor, "n n"]:
        """P at (rho, tau)."""
        form = self.linear(point)
        form[self.output.span, self.output.span] -= self.output.matrix.mT @ self.output.matrix
        return form

    def slack(self, point: Float64[Tensor, " groups"]) -> float:
        """A bound of the spectral norm of the difference between `matrix(point)` as computed and the true P.

        A product M* D M is within gamma sum_i d_i |m_i|^2, relative errors of M included; an error e of M adds
        max(d) (2 |M| e + e^2). Adding up costs one rounding for each piece.
        """
        roundings = len(self.layers) + 8
        share = _slack_of(self.output, torch.ones(len(self.output.matrix), dtype=torch.float64), roundings)
        for one in self.constraints:
            depth = len(one.group) + len(one.rest_group) + roundings
            share += _slack_of(one.rest, point[1 + one.rest_group].abs(), depth)
            share += _slack_of(one.into, point[1 + one.group].abs(), depth)
        rho = product_error(roundings, torch.float64) * float(point[0].abs())
        # The last term is more than underflow can cost.
        return (share + rho) * (1 + 1e-6) + 1e-280


def _layer(one: Constraint) -> Layer:
    spans = (one.rest.span, one.into.span)
    start, stop = min(s.start for s in spans), max(s.stop for s in spans)
    count = len(one.rest.matrix)
    matrix = torch.zeros(count + len(one.into.matrix), stop - start, dtype=torch.float64)
    sign = torch.ones(len(matrix), dtype=torch.float64)
    for rows, at in ((one.rest, slice(0, count)), (one.into, slice(count, None))):
        matrix[at, rows.span.start - start : rows.span.stop - start] = rows.matrix
    sign[count:] = -1
    return Layer(slice(start, stop), matrix, sign, 1 + torch.cat([one.rest_group, one.group]))


def _slack_of(rows: Rows, weight: Tensor, depth: int) -> float:
    if not rows.matrix.numel():
        return 0.0
    squares = float((weight * (rows.matrix**2).sum(1)).sum()) * (1 + 1e-9)
    relative = product_error(len(rows.matrix) + depth, torch.float64) + 2 * rows.relative + rows.relative**2
    error = rows.error * (1 + rows.relative)
    return relative * squares + float(weight.max()) * (2 * rows.size * error + error**2)
