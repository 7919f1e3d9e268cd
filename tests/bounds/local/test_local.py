"""Any method on a region: never below the truth there, never above its own global value, one value for each sample."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Bound, Kind, Scope
from lipkit.bounds import DAG, LipLT, Method
from lipkit.bounds.local.local import Local
from lipkit.bounds.local.ranges import Intervals
from lipkit.bounds.local.relaxation import Relaxation
from lipkit.bounds.lower.sampling import Sampling
from lipkit.errors import KindError, NeedsRegion, RegionError, ShapeError
from lipkit.linops import Dense, Reshape
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.nodes import Product as ProductNode
from support.networks.local_oracles import exact_constant, network_of, random_weights, reference_network


@settings(max_examples=2)
@given(seed=st.integers(0, 10**6), radius=st.sampled_from([0.05, 0.5]))
def test_between_the_truth_and_the_global_bound(seed: int, radius: float):
    weights, biases = random_weights(seed, 3, 4, 2, 2)
    region = Box(torch.full((2,), -radius), torch.full((2,), radius))
    network = network_of(weights, biases)
    truth = exact_constant(weights, biases, region, 2.0)
    for inner in (DAG(), LipLT()):
        local = Local(inner, Relaxation())(network, region)
        assert local.kind is Kind.UPPER
        assert local.region == region
        # svdvals of the oracle may be high by rounding.
        assert float(local.value) >= truth * (1 - 1e-12)
        assert float(local.value) <= float(inner(network).value)


def test_equal_to_the_jacobian_where_all_neurons_are_stable():
    weights, biases = random_weights(4, 3, 6, 4, 2)
    center = np.array([0.4, -0.3, 0.8, 0.1])
    on, x = np.eye(4), center
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        z = w @ x + b
        on, x = np.diag(z > 0) @ w @ on, np.maximum(z, 0)
    truth = np.linalg.norm(weights[-1] @ on, 2)
    found = Local(LipLT(), Relaxation())(network_of(weights, biases), Ball(torch.from_numpy(center), 1e-4))
    # LipLT composes norms to within 1e-6.
    assert float(found.value) == pytest.approx(truth, rel=1e-5)


def test_one_value_for_each_sample():
    network = reference_network()
    centers = torch.tensor([[0.0, 0.0], [1.0, -1.0], [3.0, 2.0]])
    method = Local(DAG())
    found = method(network, Ball(centers, 0.2))
    assert found.of is Scope.SAMPLE
    for value, center in zip(found.value, centers, strict=True):
        assert float(value) == pytest.approx(float(method(network, Ball(center, 0.2)).value), rel=1e-12)
    boxes = method(network, Box(centers - 0.1, centers + 0.1))
    assert bool(
        (boxes.value <= found.value * (1 + 1e-9)).all()
    )  # a smaller region; norms are within 1e-9 of each other


def test_nodes_without_a_global_constant_get_one():
    # f(x) = x_0 x_1 on a ball around (2, 1): the gradient (x_1, x_0) is longest at the far end.
    blocks = {(1, 0): Reshape((2,), (2,)), (2, 1): Dense(torch.ones(1, 1, dtype=torch.float64))}
    network = Network((2,), (ProductNode((1,), (1,)),), blocks, target=(1,))
    with pytest.raises(NeedsRegion):
        DAG()(network)
    center = torch.tensor([2.0, 1.0])
    truth = math.hypot(2, 1) + 0.1
    found = Local(DAG())(network, Ball(center, 0.1))
    assert truth * (1 - 1e-12) <= float(found.value) <= 1.2 * truth  # the node knows a box or a ball, not both
    assert float(Sampling(64)(network, Ball(center, 0.1)).value) <= truth


def test_gradients_reach_the_weights():
    network = network_of(*random_weights(0, 3, 4, 3, 2))
    leaves = [t.requires_grad_() for t in network.tensors()]
    bound = Local(LipLT())(network, Ball(torch.zeros(3), 0.05))
    bound.log_value.backward()
    gradient = leaves[0].grad
    assert gradient is not None
    step = 1e-6
    with torch.no_grad():
        change = torch.zeros_like(leaves[0])
        change[0, 1] = step
        there = Local(LipLT())(network.map(lambda t: t + change if t is leaves[0] else t), Ball(torch.zeros(3), 0.05))
    # A one-sided difference: first order in the step, and the norms are found to 1e-9.
    assert float(there.log_value - bound.log_value.detach()) / step == pytest.approx(float(gradient[0, 1]), abs=1e-3)


@final
@dataclass(frozen=True)
class Guess(Method):
    """A method that proves nothing."""

    def _bound(self, network: Network, region: Region) -> Bound:
        return Bound.from_value(1.0, Kind.ESTIMATE, self)


@pytest.mark.parametrize(
    ("method", "region", "error", "words"),
    [
        (Local(DAG()), Everywhere(), RegionError, "bounded region"),
        (Local(DAG()), Ball(torch.zeros(3), 1.0), ShapeError, r"\(2,\).*\(3,\)"),
        (Local(DAG()), Ball(torch.zeros(0, 2), 1.0), ShapeError, r"\(0, 2\)"),
        (Local(Guess()), Ball(torch.zeros(2), 1.0), KindError, "upper bound"),
    ],
)
def test_misuse_is_explained(method: Method, region: Region, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        method(reference_network(), region)


def test_it_says_how_it_was_found():
    assert "slopes from intervals" in str(
        Local(DAG(), Intervals(balls=False))(reference_network(), Ball(torch.zeros(2), 1.0))
    )
