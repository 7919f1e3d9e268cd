"""The mixed-integer program encloses the exact local constant, in the norms that have a linear form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Kind, Metric
from lipkit.bounds.exact.mixed_integer import LipMIP
from lipkit.bounds.exact.mixed_integer_model import Model
from lipkit.errors import ArgumentError, MetricError, RegionError, ShapeError, UnsupportedError
from lipkit.regions import Ball, Box
from lipkit.trace.nodes.activations.sigmoids import TANH
from support.networks.local_oracles import (
    HALF_BOX,
    exact_constant,
    network_of,
    norm_of,
    pieces,
    random_weights,
    reference_network,
)
from support.networks.random_graphs import LEAKY


@pytest.mark.parametrize(("p", "published"), [(math.inf, 1.825649), (1.0, 1.291678)])
def test_published_figures(p: float, published: float):
    found = LipMIP(Metric(p, p))(reference_network(), HALF_BOX)
    assert found.kind in {Kind.UPPER, Kind.EXACT}
    assert found.lower is not None
    assert float(found.lower.value) == pytest.approx(published, abs=6e-7)  # printed to six digits
    # The slack is 1e-7 times the ranges of some hundred variables and rows.
    assert published - 6e-7 <= float(found.value) <= published + 1e-4


@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), p=st.sampled_from([1.0, math.inf]))
def test_encloses_the_enumeration(seed: int, p: float):
    weights, biases = random_weights(seed, 3, 4, 2, 2)
    region = Box(torch.full((2,), -0.5), torch.full((2,), 0.5))
    if p == 1.0:
        truth = max(abs(j).max() for j in pieces(weights, biases, region))  # l1 -> linf: the largest entry
    else:
        truth = exact_constant(weights, biases, region, p)
    found = LipMIP(Metric(p, math.inf))(network_of(weights, biases), region)
    assert float(found.value) >= truth * (1 - 1e-12)
    # The slack, relative to ranges that random weights make larger.
    assert float(found.value) <= truth + 1e-3 * (1 + truth)
    if found.lower is not None:
        assert float(found.lower.value) <= truth * (1 + 1e-12)


def test_other_kinks_and_l1_balls():
    network = network_of(*random_weights(1, 3, 4, 2, 1), LEAKY)
    ball = LipMIP(Metric(math.inf, math.inf))(network, Ball(torch.zeros(2), 0.5, 1.0))
    box = LipMIP(Metric(math.inf, math.inf))(network, Ball(torch.zeros(2), 0.5, math.inf))
    grid = torch.linspace(-0.5, 0.5, 81, dtype=torch.float64)
    x = torch.cartesian_prod(grid, grid)
    for found, inside in ((ball, x.abs().sum(1) <= 0.5), (box, x.abs().amax(1) <= 0.5)):
        points = x[inside].requires_grad_()
        gradients = torch.autograd.grad(network(points).sum(), points)[0]
        sampled = float(gradients.abs().sum(1).max())
        assert sampled * (1 - 1e-12) <= float(found.value)
        assert float(found.value) == pytest.approx(sampled, rel=1e-3)  # a grid of 81 x 81 meets every piece that counts
    assert float(ball.value) <= float(box.value) + 1e-3


def test_without_time_the_interval_bound_remains():
    weights, biases = random_weights(0, 4, 8, 4, 1)
    found = LipMIP(budget=1e-9)(network_of(weights, biases), Ball(torch.zeros(4), 0.5, math.inf))
    sampled = max(norm_of(network_jacobian, math.inf) for network_jacobian in _sampled(weights, biases))
    assert float(found.value) >= sampled


def _sampled(weights, biases):
    from lipkit.bounds.lower.sampling import jacobians

    x = torch.rand(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    return jacobians(network_of(weights, biases), x).numpy()


def test_a_product_with_a_binary():
    model = Model()
    switch, factor = model.binary(), model.variable(-2.0, 3.0)
    product = model.product(switch, factor)
    model.between([(factor, 1.0)], low=1.5, high=1.5)
    found = model.maximise([(product, 1.0)], 10.0)
    assert found.upper == pytest.approx(1.5, abs=1e-4)
    with pytest.raises(ArgumentError, match="finite bounds"):
        model.variable(0.0, math.inf)


def test_misuse_is_explained():
    with pytest.raises(MetricError, match="p_in = 1 or inf"):
        LipMIP(Metric(2.0, 2.0))
    with pytest.raises(ArgumentError, match="time limit"):
        LipMIP(budget=0.0)
    with pytest.raises(RegionError, match="flat sides"):
        LipMIP()(reference_network(), Ball(torch.zeros(2), 1.0))
    with pytest.raises(ShapeError, match="one input"):
        LipMIP()(reference_network(), Ball(torch.zeros(3, 2), 1.0, math.inf))
    with pytest.raises(MetricError, match="p_out = inf"):
        LipMIP(Metric(1.0, 1.0))(network_of(*random_weights(0, 2, 3, 2, 2)), HALF_BOX)
    with pytest.raises(UnsupportedError, match="one kink"):
        LipMIP()(network_of(*random_weights(0, 2, 3, 2, 1), TANH), HALF_BOX)
