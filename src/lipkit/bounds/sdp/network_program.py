"""The program of a network, and points of it to start from: from norms alone, or from the programs of its halves."""

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.cuts import not_jumped
from lipkit.bounds.sdp.dense_network import Block, DenseNetwork, Slopes, Whole, narrow_input
from lipkit.bounds.sdp.program import (
    Constraint,
    Multipliers,
    Program,
    Rows,
    factorise,
    image,
    parts_of,
    total,
    unit_rows,
)
from lipkit.errors import NotProvenError
from lipkit.rounding.float64 import gamma, norm_up
from lipkit.rounding.slacks import UNIT

# A neuron whose slopes vary less than this share of their middle is written as its linear part plus a rest; others by
# their value itself, which keeps the matrices of a feed-forward network banded.
_NEARLY_LINEAR = 0.05
# Programs up to this many variables are solved from the norms at once.
_WHOLE = 1100


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


def fold_point(network: DenseNetwork, program: Program, multipliers: Multipliers) -> Float64[Tensor, " groups"]:
    """A strictly feasible point (rho, tau) whose rho is little more than the square of the fold of the norms.

    Backwards, with g_k |y_k|^2 what is needed of node k:
        |sum_j A_j y_j|^2 <= sum_j |A_j| (sum_i |A_i|) |y_j|^2,
        g |c z + r w|^2 <= h |z|^2 + t (|w|^2 - |z|^2)   for t = g s, s > r^2, h = g (s + c^2 + c^2 r^2 / (s - r^2)),
    and h is least at s = r (|c| + r), where it is g (|c| + r)^2. Each step gives a little away, so that all
    inequalities are strict.
    """
    margin = 1 + 1 / (len(network.nodes) + 2)
    found = torch.zeros(program.groups + 1, dtype=torch.float64)
    indices = list(network.nodes)
    need = dict.fromkeys((0, *indices), 0.0)
    constraints = {one.node: one for one in program.constraints}
    for k in (network.sink, *reversed(indices)):
        needed = 1.0
        if k != network.sink:
            factor, shares = _pass(network.nodes[k], multipliers, margin)
            needed = need[k] * margin * factor
            if k in constraints:
                found[_groups(constraints[k])] = need[k] * margin * _of_groups(shares, constraints[k], multipliers)
        sizes = {j: block.size for j, block in network.row(k).items()}
        for j, size in sizes.items():
            # A block that vanishes still needs a positive weight.
            need[j] += needed * margin * (size * sum(sizes.values()) + 1e-9)
    found[0] = need[0] * margin
    return found


def _groups(constraint: Constraint) -> slice:
    return slice(1 + int(constraint.rest_group.min()), 2 + int(constraint.rest_group.max()))


def _of_groups(shares: Tensor, constraint: Constraint, multipliers: Multipliers) -> Tensor:
    if len(shares) == 1 or multipliers is Multipliers.PER_LAYER:
        return shares[:1]
    return shares[constraint.neurons]


def _pass(node: Slopes | Whole, multipliers: Multipliers, margin: float) -> tuple[float, Tensor]:
    """(h, s) for g = 1 at one node: s has one entry for each neuron, or one for all."""
    if isinstance(node, Whole):
        center = torch.tensor([node.center.size if node.center is not None else 0.0], dtype=torch.float64)
        radius = torch.tensor([node.scale.size], dtype=torch.float64)
    else:
        center, radius = node.center.abs(), node.radius
    share = radius * (center + radius) * margin
    if multipliers is Multipliers.PER_LAYER:
        share = share.max().expand_as(share)
    active = radius > 0
    rest = torch.where(active & (center > 0), (center * radius) ** 2 / (share - radius**2), 0.0)
    passed = torch.where(active, share + rest, 0.0) + center**2
    return float(passed.max()), share


def start_point(
    network: DenseNetwork,
    program: Program,
    multipliers: Multipliers,
    solve_half: Callable[[DenseNetwork, Program, Multipliers], Float64[Tensor, " groups"]],
) -> Float64[Tensor, " groups"]:
    """A strictly feasible point (rho, tau) near the optimum: from halves of a large network, else from the norms.

    Where the network can be cut, `solve_half` is asked for the points of its halves: if
    rho_1 |x|^2 - |y|^2 >= sum_1 tau (z^2 - w^2) up to a node of value y, and rho_2 |y|^2 - |output|^2 >= sum_2 from
    there on, then rho_2 times the first and the second together are the inequality of the whole, with rho_1 rho_2.
    """
    fold = fold_point(network, program, multipliers)
    if program.size <= _WHOLE:
        return fold
    try:
        found = _join(network, program, multipliers, solve_half)
    except NotProvenError:
        return fold
    if found is None or not bool(found[0] < fold[0]):
        return fold
    inside = factorise(program.matrix(found), parts_of(program)) is not None
    return found if inside else fold


def _join(
    network: DenseNetwork,
    program: Program,
    multipliers: Multipliers,
    solve_half: Callable[[DenseNetwork, Program, Multipliers], Float64[Tensor, " groups"]],
) -> Float64[Tensor, " groups"] | None:
    """The point of the whole from its halves; None if no node can be cut at, or halves see other neurons."""
    nodes = list(network.nodes)
    cuts = not_jumped(nodes[:-1], network.blocks)
    if not cuts:
        return None
    middle = nodes[(len(nodes) - 1) // 2]
    cut = min(cuts, key=lambda k: abs(k - middle))
    halves = [(half, program_of(half, multipliers)) for half in (_before(network, cut), _after(network, cut))]
    seen = [(one.node, *one.neurons.tolist()) for _, part in halves for one in part.constraints]
    if seen != [(one.node, *one.neurons.tolist()) for one in program.constraints]:
        return None
    first, second = (solve_half(half, part, multipliers) for half, part in halves)
    return torch.cat([first * second[0], second[1:]])


def _before(network: DenseNetwork, cut: int) -> DenseNetwork:
    """From the input to the value of a node."""
    sink = cut + 1
    same = Block(torch.eye(_width(network.nodes[cut]), dtype=torch.float64), 0.0, 1.0)
    blocks = {(k, j): block for (k, j), block in network.blocks.items() if k <= cut}
    return _part(network, network.inputs, {**blocks, (sink, cut): same}, sink)


def _after(network: DenseNetwork, cut: int) -> DenseNetwork:
    """From the value of a node to the output."""
    blocks = {(k, 0 if j == cut else j): block for (k, j), block in network.blocks.items() if j >= cut}
    return narrow_input(_part(network, _width(network.nodes[cut]), blocks, network.sink))


def _width(node: Slopes | Whole) -> int:
    return len(node.radius) if isinstance(node, Slopes) else len(node.scale.matrix)


def _part(network: DenseNetwork, inputs: int, blocks: dict[tuple[int, int], Block], sink: int) -> DenseNetwork:
    inside = {k for k, _ in blocks}
    nodes = {k: node for k, node in network.nodes.items() if k in inside and k != sink}
    # Units are those of the whole: what a part is asked for is its multipliers.
    return DenseNetwork(inputs, nodes, blocks, sink, dict.fromkeys((0, *nodes, sink), 0))
