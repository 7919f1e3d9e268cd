"""A feed-forward network as alternating matrices and nodes."""

from itertools import pairwise

from lipkit.bounds.sdp_network import Block, DenseNetwork, Slopes, Whole
from lipkit.errors import UnsupportedError


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
