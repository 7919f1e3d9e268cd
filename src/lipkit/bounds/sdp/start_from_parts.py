"""A start near the optimum: the program solved in parts first, whose multipliers together are a point of the whole."""

from dataclasses import replace
from time import monotonic

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.barrier import factorised, parts_of
from lipkit.bounds.sdp.cuts import not_jumped
from lipkit.bounds.sdp.dense_network import Block, DenseNetwork, Slopes, Whole, narrowed
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.bounds.sdp.program import Multipliers, Program, program_of
from lipkit.bounds.sdp.start_from_norms import fold_point
from lipkit.errors import NotProvenError

# Programs up to this many variables are solved from the fold at once.
_WHOLE = 1100
# How well parts are solved, in the constant: better is worth nothing, as their product is loose by more.
_LOOSE = 0.2


def solved(
    network: DenseNetwork, program: Program, multipliers: Multipliers, solver: InteriorPoint
) -> Float64[Tensor, " groups"]:
    """What the solver makes of the program, from the best start there is; `seconds` hold for both together.

    Where the network is large and can be cut, its halves are solved first, roughly and each in the same way:
    if rho_1 |x|^2 - |y|^2 >= sum_1 tau (z^2 - w^2) up to a node of value y, and rho_2 |y|^2 - |output|^2 >= sum_2 from
    there on, then rho_2 times the first and the second together are the inequality of the whole, with rho_1 rho_2.
    Elsewhere the start is the fold of the norms.
    """
    if not program.groups:
        return fold_point(network, program, multipliers)
    deadline = None if solver.seconds is None else monotonic() + solver.seconds
    start = start_point(network, program, multipliers, solver)
    if deadline is not None:
        # The solver looks at the clock after a step; none is left where the start took all the time.
        solver = replace(solver, seconds=max(deadline - monotonic(), 1e-9))
    return solver.solve(program, start)


def start_point(
    network: DenseNetwork, program: Program, multipliers: Multipliers, solver: InteriorPoint
) -> Float64[Tensor, " groups"]:
    """A strictly feasible point (rho, tau), from halves or from the fold; in half of the solver's `seconds`."""
    fold = fold_point(network, program, multipliers)
    if program.size <= _WHOLE:
        return fold
    try:
        found = _joined(network, program, multipliers, solver)
    except NotProvenError:
        return fold
    if found is None or not bool(found[0] < fold[0]):
        return fold
    inside = factorised(program.matrix(found), parts_of(program)) is not None
    return found if inside else fold


def _joined(
    network: DenseNetwork, program: Program, multipliers: Multipliers, solver: InteriorPoint
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
    seconds = None if solver.seconds is None else solver.seconds / 4
    rough = replace(solver, rtol=max(_LOOSE, solver.rtol), seconds=seconds)
    first, second = (solved(half, part, multipliers, rough) for half, part in halves)
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
    return narrowed(_part(network, _width(network.nodes[cut]), blocks, network.sink))


def _width(node: Slopes | Whole) -> int:
    return len(node.radius) if isinstance(node, Slopes) else len(node.scale.matrix)


def _part(network: DenseNetwork, inputs: int, blocks: dict[tuple[int, int], Block], sink: int) -> DenseNetwork:
    inside = {k for k, _ in blocks}
    nodes = {k: node for k, node in network.nodes.items() if k in inside and k != sink}
    # Units are those of the whole: what a part is asked for is its multipliers.
    return DenseNetwork(inputs, nodes, blocks, sink, dict.fromkeys((0, *nodes, sink), 0))
