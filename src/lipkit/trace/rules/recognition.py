"""What a model spells out in several operations, put back into the one node that it is."""

from lipkit.trace.network import Network
from lipkit.trace.rules.gates import merge_gates
from lipkit.trace.rules.normalizers import merge_normalizers
from lipkit.trace.rules.scores import merge_attention, merge_masks
from lipkit.trace.rules.sorting import merge_max_min


def recognized(network: Network) -> Network:
    """The same function with known patterns as single nodes: gates, normalisation, attention, MaxMin pairs.

    To be called on a network as it is lowered, one operation in each row, before anything is fused. Constants only
    become smaller: products, which have none on the whole space, become activations that have one.
    """
    return merge_max_min(merge_attention(merge_masks(merge_normalizers(merge_gates(network)))))
