"""Fusion keeps the function, whatever is cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.errors import ArgumentError, NeedsRegion, ShapeError
from lipkit.linops import Compose, Dense, Permute, Reshape, factors, product
from lipkit.trace import Network, Origin, chain
from lipkit.trace.nodes import RELU, Identity, Pointwise
from lipkit.trace.rewrites.fuse import Cut, EveryOp, Junctions, Nowhere, fuse
from support.networks.random_graphs import random_network

CUTS = (EveryOp(), Junctions(), Nowhere())


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from(CUTS))
def test_the_function_is_the_same(seed: int, cut: Cut):
    network = random_network(seed, depth=7, neurons=60)
    fused = fuse(network, cut)
    x = torch.randn(5, *network.source, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = network(x)
    # Sums in another order, through at most eight layers of entries up to 30: far below any wrong block.
    size = 1 + max(float(v.abs().max()) for v in network.values(x))
    assert (fused(x) - expected).abs().max() <= 1e-10 * size


@given(st.integers(0, 10**9))
def test_cuts_keep_what_they_say(seed: int):
    network = random_network(seed, depth=7)
    count = [sum(isinstance(n, Pointwise) and n.is_identity for n in fuse(network, cut).nodes) for cut in CUTS]
    assert count[0] >= count[1] >= count[2] == 0
    assert len(fuse(network, EveryOp()).nodes) == len(network.nodes)


def test_junctions_stay_and_single_uses_do_not():
    eye = Dense(torch.eye(2))
    nodes = tuple(Pointwise(a, (2,)) for a in (RELU, Identity(), RELU))
    # y_2 = y_1 + x is used twice: a junction. Without the second use it is fused.
    blocks = {(1, 0): eye, (2, 0): eye, (2, 1): eye, (3, 2): eye, (4, 3): eye, (4, 2): eye}
    network = Network((2,), nodes, blocks, target=(2,))
    assert len(fuse(network, Junctions()).nodes) == 3
    assert len(fuse(network, Nowhere()).nodes) == 2
    single = Network((2,), nodes, {at: op for at, op in blocks.items() if at != (4, 2)}, target=(2,))
    assert len(fuse(single, Junctions()).nodes) == 2


def test_origins_follow_their_rows():
    network = chain([Dense(torch.eye(2))] * 3, RELU)
    named = Network(
        network.source,
        (Pointwise(Identity(), (2,)), network.nodes[1]),
        network.blocks,
        {},
        tuple(map(Origin, "abc")),
        network.target,
    )
    assert [origin.op for origin in fuse(named, Nowhere()).origins] == ["b", "c"]


def test_products_drop_what_cancels():
    there, back = Reshape((2, 3), (6,)), Reshape((6,), (2, 3))
    dense = Dense(torch.ones(6, 6))
    assert factors(product(dense, product(there, back))) == [dense]
    turned = product(Permute((3, 2), (1, 0)), Permute((2, 3), (1, 0)))
    assert isinstance(turned, Permute)
    assert turned.order == (0, 1)
    assert isinstance(product(dense, dense), Compose)


def test_a_network_says_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"Block \(1, 0\)"):
        Network((3,), (), {(1, 0): Dense(torch.eye(2))}, target=(2,))
    with pytest.raises(ArgumentError, match="must go forward"):
        Network((2,), (), {(1, 1): Dense(torch.eye(2))}, target=(2,))
    with pytest.raises(ShapeError, match=r"takes \(batch, 2\), got \(4, 3\)"):
        chain([Dense(torch.eye(2))], RELU)(torch.ones(4, 3))
    with pytest.raises(ArgumentError, match="as many origins"):
        Network((2,), (), {(1, 0): Dense(torch.eye(2))}, {}, (Origin(), Origin()), (2,))
    with pytest.raises(ArgumentError, match="at least one operator"):
        chain([], RELU)
    chain([Dense(torch.eye(2))], RELU).require_constants(2.0)
    assert issubclass(NeedsRegion, ValueError)
