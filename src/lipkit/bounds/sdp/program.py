"""The linear matrix inequality behind LipSDP, for any network of slope-restricted nodes."""

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from lipkit.bounds.sdp.dense_network import DenseNetwork, Slopes, Whole
from lipkit.bounds.sdp.linear_rows import Rows, image, total, unit_rows
from lipkit.rounding.float64 import gamma, norm_up, product_error
from lipkit.rounding.slacks import UNIT

# A neuron whose slopes vary less than this share of their middle is written as its linear part plus a rest; others by
# their value itself, which keeps the matrices of a feed-forward network banded.
_NEARLY_LINEAR = 0.05


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


def program_of(network: DenseNetwork, multipliers: Multipliers) -> Program:
    """The program of a network that has at least one path from its input to its output."""
    values: dict[int, Rows] = {0: unit_rows(0, network.inputs)}
    plain = {0}
    constraints: list[Constraint] = []
    size, groups = network.inputs, 0
    for k, node in network.nodes.items():
        into = _row(network, k, values, plain)
        active = _active(node, into)
        count = len(active)
        own = slice(size, size + count)
        if isinstance(node, Whole):
            values[k] = _value_of_whole(node, into, own)
            found = _whole(k, into, own, groups)
        else:
            values[k] = _value(node, into, own, active)
            found = _pointwise(k, node, into, own, active, groups, multipliers)
            if count == len(node.radius) and bool(found.direct.all()):
                plain.add(k)
        if count:
            constraints.append(found)
            groups = int(found.rest_group.max()) + 1
        size = size + count
    output = _row(network, network.sink, values, plain)
    return Program(size, network.inputs, tuple(constraints), output, groups, network.units[network.sink])


def _active(node: Slopes | Whole, into: Rows) -> Tensor:
    """The entries that get a variable: nonlinear ones that can move at all."""
    if isinstance(node, Whole):
        return torch.arange(node.scale.matrix.shape[1] if bool(into.matrix.any()) else 0)
    return torch.nonzero((node.radius > 0) & into.matrix.any(1)).flatten()


def _row(network: DenseNetwork, k: int, values: dict[int, Rows], plain: set[int]) -> Rows:
    """z_k as a function of the variables; a value that is made of variables is multiplied without rounding."""
    return total(
        [
            Rows(values[j].start, block.matrix, 0.0, block.error) if j in plain else image(block, values[j])
            for j, block in network.row(k).items()
        ]
    )


def _direct(node: Slopes) -> Tensor:
    return node.radius > _NEARLY_LINEAR * node.center.abs()


def _value(node: Slopes, into: Rows, own: slice, active: Tensor) -> Rows:
    """y = u for direct neurons, c z + r u for the others, c z for those without a variable."""
    factor, shear = torch.zeros_like(node.radius), node.center.clone()
    direct = _direct(node)[active]
    factor[active] = torch.where(direct, 1.0, node.radius[active])
    shear[active[direct]] = 0.0
    mine = torch.zeros(len(factor), len(active), dtype=torch.float64)
    mine[active, torch.arange(len(active))] = factor[active]
    # An entry that cannot move but for rounding errors still moves by its slope times those.
    idle = (node.radius > 0) & ~into.matrix.any(1)
    drift = float(torch.where(idle, node.radius, 0.0).max()) * into.error
    own_part = Rows(own.start, mine, 0.0, drift)
    return total([into.times(shear), own_part]) if bool(shear.any()) else own_part


def _pointwise(
    k: int, node: Slopes, into: Rows, own: slice, active: Tensor, groups: int, multipliers: Multipliers
) -> Constraint:
    """w = (u - c z) / r for direct neurons, u for the others."""
    count, direct = len(active), _direct(node)[active]
    radius, center = node.radius[active], node.center[active]
    inverse = torch.where(direct, 1 / radius, 1.0)
    chosen = into.chosen(active)
    mine = Rows(own.start, torch.diag(inverse), 2 * UNIT)
    shear = torch.where(direct, -center * inverse, 0.0)
    rest = total([chosen.times(shear), mine]) if bool(shear.any()) else mine
    rest = Rows(rest.start, rest.matrix, rest.relative + gamma(4), rest.error)
    steps = torch.arange(count) if multipliers is Multipliers.PER_NEURON else torch.zeros(count, dtype=torch.int64)
    return Constraint(k, chosen, rest, groups + steps, groups + steps, own, active, direct)


def _value_of_whole(node: Whole, into: Rows, own: slice) -> Rows:
    # A node whose input cannot move but for rounding errors still moves by its constant times those.
    drift = 0.0 if own.stop > own.start else float(norm_up(node.scale.matrix, 2)) * into.error
    mine = Rows(own.start, node.scale.matrix[:, : own.stop - own.start], 0.0, node.scale.error + drift)
    return mine if node.center is None else total([image(node.center, into), mine])


def _whole(k: int, into: Rows, own: slice, groups: int) -> Constraint:
    count = own.stop - own.start
    group = torch.full((len(into.matrix),), groups)
    rest_group, direct = torch.full((count,), groups), torch.zeros(count, dtype=torch.bool)
    return Constraint(k, into, unit_rows(own.start, count), group, rest_group, own, torch.arange(count), direct)
