"""Climbing: below the truth always, at it for functions whose steepest place is known."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Kind, Metric, Scope
from lipkit.bounds.lower.clever import profile
from lipkit.bounds.lower.gradient_ascent import DifferenceQuotient, GradientAscent, JacobianNorm
from lipkit.errors import ArgumentError
from lipkit.linops import Dense
from lipkit.regions import Ball, Box, Everywhere
from lipkit.trace import chain
from lipkit.trace.nodes import RELU
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.sigmoids import SIGMOID, TANH
from support.networks.local_oracles import HALF_BOX, exact_constant, network_of, random_weights, reference_network

OBJECTIVES = (JacobianNorm(), DifferenceQuotient())


@pytest.mark.parametrize(
    ("activation", "constant"), [(GELU, 1.128904145), (TANH, 1.0), (SIGMOID, 0.25)], ids=["gelu", "tanh", "sigmoid"]
)
def test_steepest_places_of_activations_are_found(activation, constant: float):
    # Far from the steepest place at first: GELU's is at sqrt(2), in a region of [-10, 10].
    one = Dense(torch.ones(1, 1, dtype=torch.float64))
    network = chain([one, one], activation)
    found = GradientAscent(60, 32)(network, Box(torch.tensor([-10.0]), torch.tensor([10.0])))
    assert found.kind is Kind.LOWER
    # Nine digits are published; the quotient of two points loses the square of their distance.
    assert constant - 1e-6 <= float(found.value) <= constant + 1e-9


@pytest.mark.parametrize("on", OBJECTIVES, ids=str)
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6))
def test_never_above_the_enumeration(on, seed: int):
    weights, biases = random_weights(seed, 3, 4, 2, 2)
    truth = exact_constant(weights, biases, HALF_BOX, 2.0)
    found = GradientAscent(6, 8, on)(network_of(weights, biases), HALF_BOX)
    assert float(found.value) <= truth * (1 + 1e-12)  # rounding of the oracle


@pytest.mark.parametrize("on", [*OBJECTIVES, DifferenceQuotient(anchored=True)], ids=str)
def test_it_climbs(on):
    # Deterministic, and steps never lose what a start had.
    network = network_of(*random_weights(2, 3, 8, 3, 2), TANH)
    region = Ball(torch.tensor([2.0, -1.0, 0.5]), 1.5)
    none, some = (float(GradientAscent(steps, 8, on)(network, region).value) for steps in (0, 15))
    assert some > 1.01 * none
    assert some == float(GradientAscent(15, 8, on)(network, region).value)


@pytest.mark.parametrize("on", OBJECTIVES, ids=str)
def test_a_matrix_is_found_from_below(on):
    matrix = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = float(torch.linalg.svdvals(matrix).max())
    found = GradientAscent(100, 8, on)(chain([Dense(matrix)], RELU), Ball(torch.zeros(3), 0.15))
    # The quotient converges along a ridge: a percent after a hundred steps.
    assert 0.99 * truth <= float(found.value) <= truth * (1 + 1e-14)


def test_the_published_local_constant():
    for on in OBJECTIVES:
        found = GradientAscent(30, 32, on)(reference_network(), HALF_BOX)
        assert 1.39 <= float(found.value) <= 1.397697 + 6e-7


def test_anchored_at_the_data():
    # The empirical estimator: the mean over centers of the largest quotient from the center.
    centers = torch.tensor([[0.0, 0.0], [0.5, -0.5]])
    found = GradientAscent(10, 4, DifferenceQuotient(anchored=True))(reference_network(), Ball(centers, 0.15))
    assert found.of is Scope.SAMPLE
    assert found.state is not None
    assert torch.equal(found.state[:, 0], centers.double())
    free = GradientAscent(10, 4)(reference_network(), Ball(centers, 0.15))
    assert 0 < profile(found).mean <= float(free.value.max()) * (1 + 1e-6)
    with pytest.raises(ArgumentError, match="needs a ball"):
        GradientAscent(10, 4, DifferenceQuotient(anchored=True))(reference_network(), HALF_BOX)


def test_other_norms_and_the_whole_space():
    found = GradientAscent(10, 16, metric=Metric(math.inf, math.inf))(reference_network(), HALF_BOX)
    assert 1.8 <= float(found.value) <= 1.825649 + 6e-7
    everywhere = GradientAscent(10, 64)(reference_network(), Everywhere())
    assert 1.39 <= float(everywhere.value) <= 1.798805 + 6e-7
    with pytest.raises(ArgumentError, match="starts >= 1"):
        GradientAscent(starts=0)
