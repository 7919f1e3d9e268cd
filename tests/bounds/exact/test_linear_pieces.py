"""Exact local constants against an enumeration that shares no code, in every norm; soundness when stopped early."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Kind, Metric
from lipkit.bounds.exact.linear_pieces import LinearPieces
from lipkit.errors import ArgumentError, RegionError, ShapeError, UnsupportedError
from lipkit.linops import Dense
from lipkit.regions import Ball, Box, Everywhere
from lipkit.trace import chain
from lipkit.trace.nodes import PiecewiseLinear
from lipkit.trace.nodes.activations.sigmoids import TANH
from support.networks.local_oracles import HALF_BOX, exact_constant, network_of, random_weights, reference_network
from support.networks.random_graphs import ABS

HARDTANH = PiecewiseLinear("hardtanh", torch.nn.functional.hardtanh, (-1.0, 1.0), (0.0, 1.0, 0.0))


@pytest.mark.parametrize(("p", "published"), [(2.0, 1.397697), (math.inf, 1.825649), (1.0, 1.291678)])
def test_published_figures(p: float, published: float):
    found = LinearPieces(Metric(p, p))(reference_network(), HALF_BOX)
    assert found.kind is Kind.EXACT
    assert float(found.value) == pytest.approx(published, abs=6e-7)  # printed to six digits
    assert found.lower is not None
    assert float(found.lower.value) <= float(found.value) <= float(found.lower.value) * (1 + 2e-9)


def test_the_published_global_constant():
    # All 27 linear regions meet this box.
    found = LinearPieces()(reference_network(), Box(torch.full((2,), -50.0), torch.full((2,), 50.0)))
    assert float(found.value) == pytest.approx(1.798805, abs=6e-7)


@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), radius=st.sampled_from([0.2, 1.0]), p=st.sampled_from([1.0, 2.0, math.inf]))
def test_equal_to_the_enumeration(seed: int, radius: float, p: float):
    weights, biases = random_weights(seed, 3, 4, 2, 2)
    region = Box(torch.full((2,), -radius), torch.full((2,), radius))
    truth = exact_constant(weights, biases, region, p)
    found = float(LinearPieces(Metric(p, p))(network_of(weights, biases), region).value)
    assert found >= truth * (1 - 1e-12)
    # Pieces thinner than 1e-7 are not counted by the oracle; none of these networks has one.
    assert found <= truth * (1 + 1e-8) + 1e-12


def test_balls_of_other_norms():
    # The piece that matters meets both balls.
    for p in (1.0, 2.0):
        found = LinearPieces()(reference_network(), Ball(torch.zeros(2), 0.5, p))
        assert float(found.value) == pytest.approx(1.397697, abs=6e-7)


def test_several_kinks():
    # hardtanh(2 x) is flat beyond 1/2.
    f = chain([Dense(torch.tensor([[2.0]])), Dense(torch.tensor([[1.0]]))], HARDTANH)
    assert float(LinearPieces()(f, Box(torch.tensor([0.6]), torch.tensor([9.0]))).value) < 1e-200
    assert float(LinearPieces()(f, Box(torch.tensor([0.4]), torch.tensor([9.0]))).value) == pytest.approx(2.0, rel=1e-9)
    g = chain(
        [Dense(torch.tensor([[1.0], [2.0]])), Dense(torch.tensor([[1.0, -3.0]]))], ABS, [torch.tensor([-0.2, 0.0])]
    )
    # |x - 0.2| - 3 |2x|: slopes 5, -7, -5.
    assert float(LinearPieces()(g, Box(torch.tensor([-1.0]), torch.tensor([1.0]))).value) == pytest.approx(
        7.0, rel=1e-9
    )
    assert float(LinearPieces()(g, Box(torch.tensor([0.3]), torch.tensor([1.0]))).value) == pytest.approx(5.0, rel=1e-9)


def test_stopped_early_it_is_an_upper_bound():
    found = LinearPieces(cells=2)(reference_network(), HALF_BOX)
    assert found.kind is Kind.UPPER
    assert float(found.value) > 1.397697


@pytest.mark.parametrize(
    ("region", "error"),
    [(Everywhere(), RegionError), (Ball(torch.zeros(3, 2), 1.0), ShapeError)],
)
def test_misuse_is_explained(region, error: type[Exception]):
    with pytest.raises(error):
        LinearPieces()(reference_network(), region)
    with pytest.raises(ArgumentError, match="cells"):
        LinearPieces(cells=0)
    with pytest.raises(UnsupportedError, match="straight pieces"):
        LinearPieces()(network_of(*random_weights(0, 2, 3, 2, 1), TANH), HALF_BOX)
