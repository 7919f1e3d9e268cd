"""A network as dense matrices between slope-restricted nodes: what semidefinite programs read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import NonFiniteError, NotProvenError, TooLargeError, UnsupportedError
from lipkit.linops import Dense, LinearOperator, depth, magnitude, materialize
from lipkit.rounding.float64 import gamma, norm_up, product_error
from lipkit.rounding.slacks import ROUNDINGS_8, ULP, UNIT
from lipkit.trace import Network
from lipkit.trace.nodes import Node, Pointwise

# More entries than this in one node or block are not written out: the program over them could not be solved anyway.
_LIMIT = 2**26
# What scaling by powers of two may lose to underflow, entry by entry, is far below this.
_UNDERFLOW = 1e-290


@final
@dataclass(frozen=True, eq=False)
class Block:
    """A linear map as a matrix, within `error` of the true one in the spectral norm; `size` is about its norm."""

    matrix: Float64[Tensor, "rows cols"]
    error: float
    size: float


@final
@dataclass(frozen=True, eq=False)
class Slopes:
    """dy_i = center_i dz_i + radius_i dw_i with |dw_i| <= |dz_i|, entry by entry."""

    center: Float64[Tensor, " n"]
    radius: Float64[Tensor, " n"]


@final
@dataclass(frozen=True, eq=False)
class Whole:
    """dy = center dz + scale dw with ||dw|| <= ||dz||; no center is zero."""

    center: Block | None
    scale: Block


@final
@dataclass(frozen=True, eq=False)
class DenseNetwork:
    """z_k = sum_j A_kj y_j, y_k = phi_k(z_k), increments only; only what lies between input and output is kept.

    Row k and value k are in units of 2^units[k], chosen so that every constant from the input to z_k is about 1. Nodes
    are in order, their indices those of the network they come from. `lift` takes an input of this network to one of the
    original, of about the same length; None where they are the same.
    """

    inputs: int
    nodes: Mapping[int, Slopes | Whole]
    blocks: Mapping[tuple[int, int], Block]
    sink: int
    units: Mapping[int, int]
    lift: Float64[Tensor, "original inputs"] | None = None

    @property
    def connected(self) -> bool:
        """Whether the output depends on the input at all."""
        return any(at == self.sink for at, _ in self.blocks)

    def row(self, k: int) -> dict[int, Block]:
        """The blocks of row k by column, in order."""
        return {j: self.blocks[at, j] for at, j in sorted(self.blocks) if at == k}


@torch.no_grad()
def read(network: Network) -> DenseNetwork:
    """The network in this form, on the CPU and without gradients.

    Matrices are written out in float64 with their rounding errors bounded; an input wider than what reads it is
    rotated to its own width, and values are scaled by powers of two.
    """
    network.require_constants(2.0)
    wide = network.detach().to(torch.float64, "cpu")
    within = between(wide.blocks, wide.sink)
    refuse_large_blocks(wide)
    written = {(k, j): _write_out(op) for (k, j), op in wide.blocks.items() if k in within and j in within}
    nodes = {k: _slopes(wide.nodes[k - 1]) for k in sorted(within - {0, wide.sink})}
    # What is exactly zero carries nothing, be it a block or a node all of whose entries are off.
    off = {k for k, node in nodes.items() if _is_off(node)}
    blocks = {at: block for at, block in written.items() if at[1] not in off and not _is_zero(block)}
    kept = between(blocks, wide.sink)
    blocks = {(k, j): block for (k, j), block in blocks.items() if k in kept and j in kept}
    nodes = {k: node for k, node in nodes.items() if k in kept}
    return narrow_input(_scale(DenseNetwork(math.prod(wide.source), nodes, blocks, wide.sink, {})))


def between(edges: Iterable[tuple[int, int]], sink: int) -> set[int]:
    """The values that depend on the input and that the output depends on, both ends included if there are any."""
    ordered = sorted(edges)
    after, before = {0}, {sink}
    for k, j in ordered:
        if j in after:
            after.add(k)
    for k, j in reversed(ordered):
        if k in before:
            before.add(j)
    return after & before


def refuse_large_blocks(network: Network) -> None:
    """Refuse a network with a block that is not written out, before any other is."""
    within = between(network.blocks, network.sink)
    for (k, j), op in network.blocks.items():
        entries = op.in_size * op.out_size
        if k in within and j in within and entries > _LIMIT and not isinstance(op, Dense):
            raise TooLargeError(
                f"The linear map into {network.origin(k)} would be a matrix of {op.out_size} x {op.in_size} = {entries}"
                f" entries, the limit of methods that write a network out as matrices is {_LIMIT}; use LipLT() or "
                "Auto(), which do not."
            )


def _write_out(op: LinearOperator) -> Block:
    if op.dtype.is_complex:
        raise UnsupportedError(f"{op} is complex; semidefinite bounds read real networks: use the fold `DAG` instead.")
    matrix = materialize(op, _LIMIT)
    if not bool(torch.isfinite(matrix).all()):
        raise NonFiniteError(f"{op} has NaN or infinite weights, so it has no norm; repair the weights first.")
    size = _norm(matrix)
    if isinstance(op, Dense):
        return Block(matrix, 0.0, size)
    found = magnitude(op)
    error = product_error(depth(op), torch.float64) * (float(found.absolute) + 2 * found.relative * size)
    return Block(matrix, error * (1 + 1e-6), size)


def _norm(matrix: Tensor) -> float:
    """About the spectral norm, or somewhat more; nothing is proven with it."""
    largest = float(matrix.abs().max())
    if largest == 0:
        return 0.0
    ratio = matrix / largest
    small = min(matrix.shape) <= 512
    return float(torch.linalg.matrix_norm(ratio, 2) if small else torch.linalg.vector_norm(ratio)) * largest


def _slopes(node: Node) -> Slopes | Whole:
    if math.prod(node.shape) > math.isqrt(_LIMIT):
        raise TooLargeError(
            f"{node} has {math.prod(node.shape)} entries, the limit of methods that write a network out as matrices is "
            f"{math.isqrt(_LIMIT)}; use LipLT() or Auto(), which do not."
        )
    if isinstance(node, Pointwise):
        alpha, beta = (s.expand(node.shape).reshape(-1) for s in node.slopes())
        center = alpha + (beta - alpha) / 2
        # Rounding of the center is paid by the radius, so that [alpha, beta] stays covered.
        radius = torch.maximum(beta - center, center - alpha) * (1 + ROUNDINGS_8) + ULP * center.abs()
        return Slopes(center, torch.where(alpha == beta, 0.0, radius))
    split = node.split(2.0)
    center = None if split.center is None else _write_out(split.center)
    return Whole(center, _write_out(split.scale))


def _is_zero(block: Block) -> bool:
    return block.error == 0 and not bool(block.matrix.any())


def _is_off(node: Slopes | Whole) -> bool:
    """Whether the value of a node cannot move, whatever goes into it."""
    if isinstance(node, Slopes):
        return not bool(node.center.any() or node.radius.any())
    return _is_zero(node.scale) and (node.center is None or _is_zero(node.center))


def _scale(network: DenseNetwork) -> DenseNetwork:
    """In units in which the fold of the norms gives about 1 for every value."""
    steep = {0: 1.0, **{k: steepness(node) for k, node in network.nodes.items()}}
    logs: dict[int, float] = {0: 0.0}
    for k in (*network.nodes, network.sink):
        terms = [
            math.log2(block.size) + math.log2(steep[j]) + logs[j]
            for j, block in network.row(k).items()
            if block.size > 0 and steep[j] > 0 and logs[j] > -math.inf
        ]
        top = max(terms, default=-math.inf)
        logs[k] = top + math.log2(sum(2.0 ** (t - top) for t in terms)) if terms else -math.inf
    units = {k: round(log) if log > -math.inf else 0 for k, log in logs.items()}
    blocks = {(k, j): _shift(block, units[j] - units[k]) for (k, j), block in network.blocks.items()}
    return replace(network, blocks=blocks, units=units)


def steepness(node: Slopes | Whole) -> float:
    """About the largest slope."""
    if isinstance(node, Slopes):
        return float((node.center.abs() + node.radius).max())
    return (node.center.size if node.center is not None else 0.0) + node.scale.size


def _shift(block: Block, exponent: int) -> Block:
    # Twice half the exponent: neither half leaves the range of float64 where the product stays in it.
    first = max(min(exponent // 2, 1000), -1000)
    second = max(min(exponent - first, 1000), -1000)
    one, two = 2.0**first, 2.0**second
    size = block.size * one * two
    return Block(block.matrix * one * two, block.error * one * two + _UNDERFLOW * (1 + size), size)


def narrow_input(network: DenseNetwork) -> DenseNetwork:
    """The input replaced by one as wide as what reads it, where that is narrower.

    {A x : ||x|| <= 1} depends on A A* only and grows with it, so any R with R R* >= A A* may stand for A.
    """
    reading = {k: block for (k, j), block in sorted(network.blocks.items()) if j == 0}
    widths = [len(block.matrix) for block in reading.values()]
    if sum(widths) >= network.inputs or not reading:
        return network
    stacked = torch.cat([block.matrix for block in reading.values()])
    factor = dominating_factor(stacked, math.hypot(*(block.error for block in reading.values())))
    lift = torch.linalg.solve_triangular(factor, stacked, upper=False).mT
    parts = zip(reading.items(), factor.split(widths), strict=True)
    blocks = {(k, 0): Block(part, 0.0, block.size) for (k, block), part in parts}
    return replace(network, inputs=sum(widths), blocks={**network.blocks, **blocks}, lift=lift)


def dominating_factor(matrix: Float64[Tensor, "rows cols"], error: float = 0.0) -> Float64[Tensor, "rows rows"]:
    """Lower-triangular R with R R* >= A A* for every A within `error` of `matrix` in the spectral norm.

    R is a Cholesky factor of fl(A A*) + s I, and not trusted: R R* is multiplied out, and s covers all errors.
    """
    rows, cols = matrix.shape
    size = float(norm_up(matrix, 2))
    gram = matrix @ matrix.mT
    owed = product_error(cols, torch.float64) * size**2 + 2 * size * error + error**2
    shift = max(4 * owed, rows * UNIT * size**2, _UNDERFLOW)
    for _ in range(60):
        shifted = gram + shift * torch.eye(rows, dtype=torch.float64)
        factor, info = torch.linalg.cholesky_ex(shifted)
        if int(info) == 0:
            residual = norm_up(shifted - factor @ factor.mT, 2) + 4 * UNIT * norm_up(shifted, 2)
            missing = float(residual + product_error(rows, torch.float64) * norm_up(factor, 2) ** 2) + owed
            if missing * (1 + gamma(16)) <= shift:
                return factor
        shift = 4 * shift
    raise NotProvenError("The input of the network could not be narrowed; check the weights for extreme ranges.")


def chain_of(network: DenseNetwork, method: object) -> tuple[list[Block], list[Slopes | Whole]]:
    """A_1, ..., A_L and phi_1, ..., phi_(L-1) of a network without branches; refuses any other."""
    order = [0, *network.nodes, network.sink]
    blocks: list[Block] = []
    for before, k in pairwise(order):
        row = network.row(k)
        if list(row) != [before]:
            raise UnsupportedError(
                f"{method} reads plain feed-forward networks, but row {k} of this one reads the values {list(row)}; "
                "use LipSDP, which reads any network."
            )
        blocks.append(row[before])
    return blocks, list(network.nodes.values())
