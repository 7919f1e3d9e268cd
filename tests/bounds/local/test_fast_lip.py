"""Interval Jacobians: published figures, sound against enumeration and sampling, exact where nothing is uncertain."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Kind, Metric, Scope
from lipkit.bounds.local.fast_lip import FastLip, largest_norm
from lipkit.bounds.local.ranges import Intervals
from lipkit.bounds.local.relaxation import Relaxation
from lipkit.bounds.lower.sampling import jacobians
from lipkit.errors import NonFiniteError, RegionError, TooLargeError, UnsupportedError
from lipkit.linops import Conv, Dense, Reshape
from lipkit.regions import Ball, Everywhere
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Pointwise, Softmax
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.powers import SQRT
from support.networks.local_oracles import (
    HALF_BOX,
    exact_constant,
    network_of,
    norm_of,
    points_in,
    random_weights,
    reference_network,
)


@pytest.mark.parametrize(("p", "published"), [(2.0, 2.889350), (math.inf, 3.958858), (1.0, 2.485424)])
def test_published_figures(p: float, published: float):
    found = FastLip(Metric(p, p), Intervals(balls=False))(reference_network(), HALF_BOX)
    # Printed to six digits, here from above.
    assert float(found.value) == pytest.approx(published, abs=6e-7)
    assert found.kind is Kind.UPPER


@settings(max_examples=4)
@given(seed=st.integers(0, 10**6), radius=st.sampled_from([0.05, 0.5]), p=st.sampled_from([1.0, 2.0, math.inf]))
def test_not_below_the_enumeration(seed: int, radius: float, p: float):
    weights, biases = random_weights(seed, 3, 4, 2, 2)
    region = type(HALF_BOX)(torch.full((2,), -radius), torch.full((2,), radius))
    truth = exact_constant(weights, biases, region, p)
    found = FastLip(Metric(p, p))(network_of(weights, biases, dtype=torch.float64), region)
    assert float(found.value) >= truth * (1 - 1e-12)  # rounding of the oracle


@pytest.mark.parametrize("activation", [RELU, GELU], ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_intervals_hold_sampled_jacobians_of_convolutions(activation, p: float):
    generator = torch.Generator().manual_seed(0)
    conv = Conv(torch.randn(3, 1, 3, 3, generator=generator), (5, 5), (2, 2), ((1, 1), (1, 1)), (1, 1))
    dense = Dense(torch.randn(2, 27, generator=generator)) @ Reshape((3, 3, 3), (27,))
    network = chain([conv, dense], activation, [torch.randn(3, 3, 3, generator=generator)])
    region = Ball(torch.randn(1, 5, 5, generator=generator), 0.3)
    found = FastLip(Metric(p, p))(network, region)
    sampled = jacobians(network, points_in(region, 100).reshape(-1, 1, 5, 5)).numpy()
    assert float(found.value) >= max(norm_of(j, p) for j in sampled) * (1 - 1e-12)


def test_both_directions_count():
    # Forward and backward intervals differ; with room for one of them only the bound can only grow.
    weights, biases = random_weights(9, 4, 6, 4, 3)
    network, region = network_of(weights, biases), Ball(torch.zeros(4), 0.4)
    both, one = FastLip()(network, region), FastLip(limit=12)(network, region)
    assert float(both.value) < float(one.value)


def test_exact_where_all_neurons_are_stable():
    weights, biases = random_weights(4, 3, 6, 4, 2)
    network, center = network_of(weights, biases), torch.tensor([0.4, -0.3, 0.8, 0.1], dtype=torch.float64)
    truth = torch.linalg.svdvals(jacobians(network, center[None])[0]).max()
    found = FastLip(slopes=Relaxation())(network, Ball(center, 1e-4))
    assert float(truth) <= float(found.value) * (1 + 1e-14)
    assert float(found.value) == pytest.approx(float(truth), rel=1e-9)  # intervals of rounding width, and one norm


def test_norms_of_interval_matrices():
    low, high = torch.tensor([[1.0, -2.0], [0.5, 0.0]]).double(), torch.tensor([[2.0, 1.0], [0.5, 3.0]]).double()
    rng = np.random.default_rng(0)
    inside = low.numpy() + rng.random((4000, 2, 2)) * (high - low).numpy()
    corners = np.where(rng.random((4000, 2, 2)) < 0.5, low.numpy(), high.numpy())
    for p in (1.0, 2.0, math.inf):
        bound = float(largest_norm(low, high, Metric(p, p)).exp())
        attained = max(norm_of(m, p) for m in np.concatenate([inside, corners]))
        assert attained <= bound * (1 + 1e-12)
        # Row and column sums are attained at a corner; the spectral norm only approximately.
        assert bound <= attained * (1 + 1e-12 if p != 2 else 1.2)


def test_one_value_for_each_sample():
    centers = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    found = FastLip()(reference_network(), Ball(centers, 0.1))
    assert found.of is Scope.SAMPLE
    assert float(found.value[1]) == float(FastLip()(reference_network(), Ball(centers[1], 0.1)).value)


@pytest.mark.parametrize(
    ("node", "error", "words"),
    [(Softmax((2,)), UnsupportedError, "no pointwise"), (Pointwise(SQRT, (2,)), NonFiniteError, "unbounded slopes")],
)
def test_nodes_it_cannot_take(node, error: type[Exception], words: str):
    eye = Dense(torch.eye(2, dtype=torch.float64))
    network = Network((2,), (node,), {(1, 0): eye, (2, 1): eye}, target=(2,))
    with pytest.raises(error, match=words):
        FastLip()(network, Ball(torch.zeros(2), 1.0))


def test_misuse_is_explained():
    with pytest.raises(RegionError, match="bounded region"):
        FastLip()(reference_network(), Everywhere())
    with pytest.raises(TooLargeError, match="1 x 2 entries"):
        FastLip(limit=1)(reference_network(), HALF_BOX)
