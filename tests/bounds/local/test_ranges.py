"""Ranges contain every value that a network takes, and are what interval arithmetic says they are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bounds.local.ranges import Intervals, Ranges, ranges
from lipkit.bounds.local.relaxation import Relaxation
from lipkit.errors import RegionError, ShapeError
from lipkit.linops import AvgPool, Conv, Dense, LinearFunction, LinearOperator, Padding, Reshape
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.trace import Network, Reach, chain
from lipkit.trace.nodes import RELU, Identity, Pointwise
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.sigmoids import TANH
from support.networks.local_oracles import (
    HALF_BOX,
    network_of,
    points_in,
    random_weights,
    reference_network,
    reference_weights,
)
from support.networks.random_graphs import random_network

METHODS = (Intervals(balls=False), Intervals(), Relaxation())


def regions(source: tuple[int, ...]) -> st.SearchStrategy[Region]:
    size = math.prod(source)
    numbers = st.lists(st.floats(-2, 2), min_size=size, max_size=size)
    centers = numbers.map(lambda values: torch.tensor(values, dtype=torch.float64).reshape(source))
    radii = st.sampled_from([0.0, 1e-3, 0.1, 1.0])
    balls = st.builds(Ball, centers, radii, st.sampled_from([1.0, 1.5, 2.0, 3.0, math.inf]))
    boxes = st.builds(lambda c, w: Box(c - w, c + w), centers, radii)
    return st.one_of(balls, boxes)


def pre_activations(network: Network, x: torch.Tensor) -> list[torch.Tensor]:
    """z_1, ..., z_(K+1) in float64, from the definition."""
    values, found = [x], []
    for k, row in network.rows().items():
        z = torch.zeros((len(x), *network.shape_into(k)), dtype=torch.float64)
        z = z + network.biases[k].double() if k in network.biases else z
        for j, op in row.items():
            z = z + op.to(torch.float64).apply(values[j])
        found.append(z)
        values.append(network.nodes[k - 1](z) if k < network.sink else z)
    return found


def assert_contained(network: Network, region: Region, reaches: list[Reach]) -> None:
    """Every sampled value is inside, up to the rounding of the evaluation here: 1e-12 of the size of the sums."""
    for z, reach in zip(pre_activations(network, points_in(region, 200)), reaches, strict=True):
        slack = 1e-12 * (1 + z.abs().max())
        assert bool((z >= reach.low - slack).all())
        assert bool((z <= reach.high + slack).all())
        assert bool((torch.linalg.vector_norm((z - reach.center).flatten(1), dim=1) <= reach.radius + slack).all())


@pytest.mark.parametrize("method", METHODS, ids=str)
@settings(max_examples=5)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_ranges_contain_what_random_graphs_compute(method: Ranges, seed: int, data: st.DataObject):
    network = random_network(seed, dtype=torch.float32 if seed % 2 else torch.float64)
    region = data.draw(regions(network.source))
    assert_contained(network, region, ranges(network, region, method))


@pytest.mark.parametrize("activation", [RELU, TANH, GELU], ids=str)
@pytest.mark.parametrize("method", METHODS, ids=str)
@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_ranges_contain_what_mlps_compute(activation, method: Ranges, seed: int, data: st.DataObject):
    network = network_of(*random_weights(seed, 3, 5, 3, 2), activation)
    region = data.draw(regions((3,)))
    assert_contained(network, region, ranges(network, region, method))


def convolutional() -> Network:
    """Strides, groups, padding modes, a pool, a callable and a junction: every kind of operator meets a bias."""
    generator = torch.Generator().manual_seed(1)

    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    first = Conv(weights(4, 2, 3, 3), (6, 6), (1, 1), ((1, 1), (1, 1)), (1, 1), mode=Padding.REFLECT)
    second = Conv(weights(6, 2, 3, 3), (6, 6), (2, 2), ((1, 1), (1, 1)), (1, 1), groups=2)
    pool = AvgPool(6, (3, 3), (3, 3), (1, 1), (0, 0), 9)
    shift: LinearOperator = LinearFunction(lambda x: x.flip(-1) - 0.5 * x, (6, 1, 1), (6, 1, 1))
    last = Dense(weights(3, 6)) @ Reshape((6, 1, 1), (6,)) @ shift @ pool
    nodes = (
        Pointwise(RELU, first.out_shape), Pointwise(Identity(), (6, 3, 3)), Pointwise(GELU, (6, 3, 3)),
        Pointwise(RELU, (6, 3, 3)),
    )  # fmt: skip
    same = Reshape((6, 3, 3), (6, 3, 3))
    blocks: dict[tuple[int, int], LinearOperator] = {
        (1, 0): first, (2, 1): second, (3, 2): same, (4, 3): same, (4, 2): same, (5, 4): last, (5, 3): last,
    }  # fmt: skip
    biases = {1: weights(4, 6, 6), 2: weights(6, 1, 1).expand(6, 3, 3), 5: weights(3)}
    return Network((2, 6, 6), nodes, blocks, biases, target=(3,))


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_ranges_contain_what_convolutions_compute(method: Ranges, p: float):
    network = convolutional()
    center = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0))
    region = Ball(center, 0.3, p)
    assert_contained(network, region, ranges(network, region, method))


def test_intervals_are_those_of_the_textbook():
    # lo' = W+ lo + W- hi, in numpy; 1e-14 for rounding on both sides.
    weights, biases = reference_weights()
    low, high = np.full(2, -0.5), np.full(2, 0.5)
    for reach, w, b in zip(ranges(reference_network(), HALF_BOX, Intervals(balls=False)), weights, biases, strict=True):
        below = np.maximum(w, 0) @ low + np.minimum(w, 0) @ high + b
        above = np.maximum(w, 0) @ high + np.minimum(w, 0) @ low + b
        np.testing.assert_allclose(reach.low.numpy(), below, atol=1e-14)
        np.testing.assert_allclose(reach.high.numpy(), above, atol=1e-14)
        low, high = np.maximum(below, 0), np.maximum(above, 0)


@pytest.mark.parametrize(("p", "q"), [(1.0, np.inf), (2.0, 2), (math.inf, 1)])
def test_the_first_layer_is_exact_on_balls(p: float, q: float):
    weights, biases = reference_weights()
    center = torch.tensor([0.3, -0.7])
    reach = ranges(reference_network(), Ball(center, 0.25, p), Intervals(balls=False))[0]
    middle = weights[0] @ center.double().numpy() + biases[0]
    width = 0.25 * np.linalg.norm(weights[0], q, axis=1)
    # Rounding of both computations.
    np.testing.assert_allclose(reach.high.numpy(), middle + width, atol=1e-14)
    np.testing.assert_allclose(reach.low.numpy(), middle - width, atol=1e-14)


def test_balls_beat_intervals_where_rows_are_long():
    # Sixteen orthogonal layers keep an l2 ball; intervals grow by about sqrt(n) a layer.
    generator = torch.Generator().manual_seed(0)
    layers = [
        Dense(torch.linalg.qr(torch.randn(32, 32, generator=generator, dtype=torch.float64))[0]) for _ in range(16)
    ]
    network = chain(layers, RELU)
    region = Ball(torch.randn(32, generator=generator), 0.01)
    wide, tight = (ranges(network, region, Intervals(balls=balls))[-1] for balls in (False, True))
    assert tight.radius <= 0.01 * (1 + 1e-6)  # norms within 1e-6 of 1, sixteen times, are well within
    assert wide.radius > 1000 * tight.radius


def test_products_of_operators_are_seen_as_a_whole():
    # B A = 0: written out, the range of the product is a point; part by part it would be wide.
    a = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    b = torch.tensor([[1.0, -1.0]])
    network = Network((2,), (Pointwise(Identity(), (2,)),), {(1, 0): Dense(a), (2, 1): Dense(b)}, target=(1,))
    reach = ranges(network, HALF_BOX, Intervals(balls=False))[-1]
    assert float(reach.high - reach.low) < 1e-14  # rounding only


def test_prepared_ranges_do_not_depend_on_the_regions_before():
    find = Relaxation().prepare(reference_network())
    region = Ball(torch.tensor([0.1, 0.2]), 0.3)
    first = find(region)
    find(HALF_BOX)
    for before, after in zip(first, find(region), strict=True):
        assert torch.equal(before.low, after.low)
        assert torch.equal(before.high, after.high)


@pytest.mark.parametrize(
    ("region", "error", "words"),
    [
        (Everywhere(), RegionError, "bounded region"),
        (Ball(torch.zeros(3), 1.0), ShapeError, r"shape \(2,\).*\(3,\)"),
        (Box(torch.zeros(2), torch.tensor([1.0, math.inf])), RegionError, "infinite ends"),
    ],
)
def test_unusable_regions_are_refused(region: Region, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        ranges(reference_network(), region)
