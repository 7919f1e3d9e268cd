"""The maximum and the minimum of one value, computed by one node."""

import math

import torch

from lipkit.linops import Index, Shape
from lipkit.trace.network import Network
from lipkit.trace.nodes import Node, OrderStatistics
from lipkit.trace.rewrites.exchange_rows import Numbering, Rewriting


def merge_max_min(network: Network) -> Network:
    """The same function with all order statistics of one value computed by one node.

    cat(maximum(a, b), minimum(a, b)) is a permutation of (a, b) at every point and hence 1-Lipschitz, while its two
    halves, bounded one by one, would give sqrt(2). Order statistics of the same value at different ranks become one
    node, and what used one of them now selects its part. Never looser: a part of the node keeps its constant of 1.
    """
    number = Numbering(network)
    groups: dict[tuple[int, Shape], list[int]] = {}
    for k, node in enumerate(network.nodes, start=1):
        if isinstance(node, OrderStatistics):
            groups.setdefault((number.input_of(k), node.shape), []).append(k)
    rewriting = Rewriting(network)
    for members in groups.values():
        if len(members) > 1:
            _merge(network, rewriting, members)
    return rewriting.result()


def _merge(network: Network, rewriting: Rewriting, members: list[int]) -> None:
    lead, shape = members[0], network.nodes[members[0] - 1].shape
    places = {k: _places(network.nodes[k - 1]) for k in members}
    every = tuple(dict.fromkeys(rank for own in places.values() for rank in own))
    whole = OrderStatistics(shape, every)
    positions = torch.arange(math.prod(whole.target)).reshape(whole.target)
    # The lead comes first: what is redirected to it afterwards already speaks of the new node.
    for k in members:
        chosen = positions[..., [every.index(rank) for rank in places[k]]]
        rewriting.redirect(k, lead, Index(chosen.contiguous(), whole.target))
    rewriting.replace(lead, whole, network.row(lead), network.biases.get(lead))


def _places(node: Node) -> tuple[int, ...]:
    assert isinstance(node, OrderStatistics)
    return tuple(rank % node.shape[-1] for rank in node.ranks)
