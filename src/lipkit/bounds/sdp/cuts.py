"""A network cut into parts at values that everything after them depends on."""

from collections.abc import Collection, Iterable
from itertools import pairwise

import torch

from lipkit.bounds.sdp.dense_network import between
from lipkit.errors import ArgumentError
from lipkit.linops import Diagonal, LinearOperator, Reshape
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network
from lipkit.trace.nodes import Node, Pointwise


def cut_vertices(network: Network) -> list[int]:
    """The nodes v that no block jumps over: no A_kj with j < v < k between input and output. Cost: one pass."""
    kept = between(network.blocks, network.sink)
    return not_jumped(kept - {0, network.sink}, [(k, j) for k, j in network.blocks if k in kept and j in kept])


def not_jumped(values: Iterable[int], edges: Collection[tuple[int, int]]) -> list[int]:
    """The values v, in order, for which no edge (k, j) has j < v < k."""
    return [v for v in sorted(values) if all(k <= v or j >= v for k, j in edges)]


def split_at(network: Network, cuts: list[int]) -> list[Network]:
    """Parts whose constants multiply to a bound of the whole: Lip(f) <= prod_i Lip(f_i).

    A part ends in z_v, before the node v it is cut at, and the next one starts with an input of the node's output
    shape, whose blocks carry the constant of the node: entry by entry for pointwise nodes, as y_i = d_i z_i with
    |d_i| <= max(|alpha_i|, |beta_i|). Biases are left out, as constants do not depend on them.
    """
    return [_part(network, first, last) for first, last in pairwise([0, *cuts, network.sink])]


def chunks(network: Network, size: int) -> list[Network]:
    """Parts of at most `size` nodes, or a few more where no cut vertex is at hand."""
    if size < 1:
        raise ArgumentError(f"A part needs at least one node, got split={size}.")
    cuts: list[int] = []
    last = 0
    vertices = cut_vertices(network)
    for v, following in pairwise([*vertices, network.sink]):
        # The part up to v has v - last - 1 nodes of its own; cut here if waiting would make it too large.
        if following - last - 1 > size:
            cuts.append(v)
            last = v
    return split_at(network, cuts)


def _part(network: Network, first: int, last: int) -> Network:
    blocks = {
        (k - first, j - first): (op if j != first or first == 0 else op @ _bounding(network.nodes[first - 1]))
        for (k, j), op in network.blocks.items()
        if first <= j and k <= last
    }
    return Network(
        network.shape_of(first),
        network.nodes[first : last - 1],
        blocks,
        origins=network.origins[first:last] if network.origins else (),
        target=network.shape_into(last),
    )


def _bounding(node: Node) -> LinearOperator:
    """A linear map B on the outputs of a node with y = B u, ||du|| <= ||dz||."""
    if isinstance(node, Pointwise):
        alpha, beta = node.slopes()
        return Diagonal(torch.maximum(alpha.abs(), beta.abs()), node.target)
    # exp is within one unit in the last place; a little more keeps the factor an upper bound.
    return Reshape(node.target, node.target) * (node.log_constant(2.0).exp() * (1 + ROUNDINGS_8))
