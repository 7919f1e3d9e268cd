"""The linear matrix inequality behind LipSDP: its rows, its quadratic form, the factor of that, and its derivatives."""

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
    ordered = sorted(terms, key=lambda term: term.start)
    if all(a.span.stop <= b.start for a, b in pairwise(ordered)):
        return Rows(start, result, max(term.relative for term in terms), error)
    rounding = sum((gamma(len(terms)) + term.relative) * term.size for term in terms)
    return Rows(start, result, 0.0, (error + rounding) * (1 + gamma(16)))


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


@final
@dataclass(frozen=True, eq=False)
class Factor:
    """P = L D L* block by block, where P couples only neighbouring parts of the variables.

    `pivots` are the Cholesky factors of the diagonal blocks D_i = P_ii - P_i,i-1 D_i-1^-1 P_i-1,i; `links` are
    D_i^-1 P_i,i+1.
    """

    parts: tuple[slice, ...]
    pivots: tuple[Tensor, ...]
    links: tuple[Tensor, ...]

    @property
    def log_det(self) -> float:
        """log det P."""
        return 2 * float(sum(pivot.diagonal().log().sum() for pivot in self.pivots))

    def inverse(self) -> Float64[Tensor, "n n"]:
        """P^-1, all of it: row i is -link_i times row i + 1, and the diagonal blocks follow from it."""
        size = self.parts[-1].stop
        found = torch.zeros(size, size, dtype=torch.float64)
        last = self.parts[-1]
        found[last, last] = torch.cholesky_inverse(self.pivots[-1])
        pairs = list(zip(self.parts, self.parts[1:], self.pivots, self.links, strict=False))
        for part, following, pivot, link in reversed(pairs):
            right = -link @ found[following, following.start :]
            found[part, following.start :] = right
            found[following.start :, part] = right.mT
            found[part, part] = torch.cholesky_inverse(pivot) - right[:, : link.shape[1]] @ link.mT
        return found


def parts_of(program: Program) -> tuple[slice, ...]:
    """The variables in consecutive parts such that P couples neighbours only; one part if there is no such order."""
    edges = sorted({0, program.inputs, program.size, *(c.own.start for c in program.constraints)})
    spans = [layer.span for layer in program.layers] + [program.output.span]
    while True:
        for span in spans:
            # The edges strictly inside what one form couples; all but the first have to go.
            inside = [e for e in edges if span.start < e < span.stop]
            if len(inside) > 1:
                edges = [e for e in edges if e not in inside[1:]]
                break
        else:
            return tuple(slice(a, b) for a, b in pairwise(edges))


def factorise(matrix: Float64[Tensor, "n n"], parts: tuple[slice, ...]) -> Factor | None:
    """The factor of P, or None if it is not positive definite."""
    pivots: list[Tensor] = []
    links: list[Tensor] = []
    block = matrix[parts[0], parts[0]]
    for i, part in enumerate(parts):
        pivot, info = torch.linalg.cholesky_ex(block)
        if int(info):
            return None
        pivots.append(pivot)
        if i + 1 < len(parts):
            coupling = matrix[part, parts[i + 1]]
            links.append(torch.cholesky_solve(coupling, pivot))
            block = matrix[parts[i + 1], parts[i + 1]] - coupling.mT @ links[-1]
    return Factor(parts, tuple(pivots), tuple(links))


def traces(program: Program, matrix: Float64[Tensor, "n n"]) -> Float64[Tensor, " groups"]:
    """tr(A Q_g) for P = rho E + sum_g tau_g Q_g + const, E first.

    Q_g is a signed sum of squares of rows m of the constraints, so that this is one of m A m*.
    """
    found = torch.zeros(program.groups + 1, dtype=torch.float64)
    found[0] = matrix.diagonal()[: program.inputs].sum()
    for layer in program.layers:
        image = layer.matrix @ matrix[layer.span, layer.span]
        found[layer.entries] = _gather((image * layer.matrix).sum(1, keepdim=True), layer, None)[:, 0]
    return found


def couplings(
    program: Program, left: Float64[Tensor, "n n"], right: Float64[Tensor, "n n"]
) -> Float64[Tensor, "groups groups"]:
    """tr(Q_g A Q_h B) for symmetric A and B: signed sums of (m A n*) (m B n*). Products are shared where A is B."""
    x = slice(0, program.inputs)
    count = program.groups + 1
    found = torch.zeros(count, count, dtype=torch.float64)
    found[0, 0] = (left[x, x] * right[x, x]).sum()
    for i, layer in enumerate(program.layers):
        here = layer.entries
        image = layer.matrix @ left[layer.span]
        other_image = image if left is right else layer.matrix @ right[layer.span]
        found[here, 0] = _gather((image[:, x] * other_image[:, x]).sum(1, keepdim=True), layer, None)[:, 0]
        for other in program.layers[: i + 1]:
            cross = image[:, other.span] @ other.matrix.mT
            cross.mul_(cross if left is right else other_image[:, other.span] @ other.matrix.mT)
            block = _gather(cross, layer, other)
            found[here, other.entries] = block
            found[other.entries, here] = block.mT
    found[0] = found[:, 0]
    return found


def _gather(entries: Tensor, rows: Layer, cols: Layer | None) -> Tensor:
    """Signed sums of the entries that share a multiplier."""
    for axis, layer in ((0, rows), (1, cols)):
        if layer is None:
            continue
        width = layer.entries.stop - layer.entries.start
        if 2 * width == len(layer.group):
            # One rest and one input for each multiplier, in order.
            entries = entries.narrow(axis, 0, width) - entries.narrow(axis, width, width)
        else:
            signed = entries * (layer.sign[:, None] if axis == 0 else layer.sign)
            entries = signed.sum(axis, keepdim=True)
    return entries
