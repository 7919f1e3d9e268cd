"""Layers that a model spells out in several operations, put back into the one node that they are."""

from collections.abc import Callable, Sequence

import torch

from lipkit.trace.network import Network
from lipkit.trace.nodes import MatrixProduct, Node, OrderStatistics, Pointwise, Product, Softmax
from lipkit.trace.nodes.activations.sigmoids import TANH
from lipkit.trace.rewrites.merge_order_statistics import merge_max_min
from lipkit.trace.rewrites.spelled_attention import merge_attention, merge_masks
from lipkit.trace.rewrites.spelled_gates import merge_gates
from lipkit.trace.rewrites.spelled_normalization import merge_normalizers

Nodes = Sequence[Node]


def _multiplies(nodes: Nodes) -> bool:
    return any(isinstance(node, Product | MatrixProduct) for node in nodes)


def _has_tanh(nodes: Nodes) -> bool:
    return any(isinstance(node, Pointwise) and node.activation is TANH for node in nodes)


# Each pass with what a network must have for it to find anything, in the order in which they are tried.
_PASSES: tuple[tuple[Callable[[Nodes], bool], Callable[[Network], Network]], ...] = (
    (lambda nodes: _multiplies(nodes) or _has_tanh(nodes), merge_gates),
    (_multiplies, merge_normalizers),
    (lambda nodes: any(isinstance(node, Softmax) for node in nodes), merge_masks),
    (lambda nodes: any(isinstance(node, MatrixProduct) for node in nodes), merge_attention),
    (lambda nodes: sum(isinstance(node, OrderStatistics) for node in nodes) > 1, merge_max_min),
)


def merge_known_layers(network: Network) -> Network:
    """The same function with known patterns as single nodes: gates, normalisation, attention, MaxMin pairs.

    To be called on a network as it is lowered, one operation in each row, before anything is fused. Constants only
    become smaller: products, which have none on the whole space, become activations that have one. A pass that changes
    the values of the network is a defect; then the network is returned as it was.
    """
    merged = network
    for applies, rewrite in _PASSES:
        if applies(merged.nodes):
            merged = rewrite(merged)
    return merged if merged is network or have_equal_values(network, merged) else network


def have_equal_values(plain: Network, rewritten: Network) -> bool:
    """Whether two networks give the same values at random points.

    A rewriting that is wrong would make every later number wrong, the lower bounds too, because all of them read the
    same network; what torch itself was asked to compute is never wrong.
    """
    generator = torch.Generator().manual_seed(0)
    # Two scales: near zero many functions agree, far out saturated ones do.
    x = torch.randn(4, *plain.source, generator=generator, dtype=torch.float64)
    scales = torch.tensor([0.1, 1.0, 1.0, 5.0], dtype=torch.float64).reshape(-1, *(1,) * len(plain.source))
    with torch.no_grad():
        expected, found = (
            network.detach().to(torch.float64)((x * scales).to(plain.device)) for network in (plain, rewritten)
        )
    size = expected.abs().nan_to_num().amax() if expected.numel() else expected.new_zeros(())
    # The same function in another order of operations, in float64.
    return torch.allclose(found, expected, rtol=1e-6, atol=1e-8 * float(size), equal_nan=True)
