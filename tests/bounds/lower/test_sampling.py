"""Lower bounds by sampling: never above the truth, near it where that is easy, honest at kinks and under rounding."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Kind, Metric, Scope
from lipkit.bounds.lower.clever import profile
from lipkit.bounds.lower.difference_quotients import draw_points, move_inside, prover
from lipkit.bounds.lower.sampling import Sampling, jacobians, matrix_norms
from lipkit.errors import ArgumentError, MetricError
from lipkit.linops import Dense
from lipkit.regions import Ball, Box, Everywhere
from lipkit.trace import chain
from lipkit.trace.nodes import RELU
from lipkit.trace.nodes.activations.gated import GELU
from support.networks.local_oracles import (
    HALF_BOX,
    exact_constant,
    network_of,
    norm_of,
    random_weights,
    reference_network,
)


@pytest.mark.parametrize(("p", "published"), [(2.0, 1.397697), (math.inf, 1.825649), (1.0, 1.291678)])
def test_reaches_the_published_figures_from_below(p: float, published: float):
    found = Sampling(2000, Metric(p, p))(reference_network(), HALF_BOX)
    assert found.kind is Kind.LOWER
    assert float(found.value) <= published + 6e-7  # printed to six digits
    assert float(found.value) >= published - 2e-6  # 2000 points of a square meet all ten pieces


def test_everywhere_reaches_the_published_global_constant():
    found = Sampling(2000)(reference_network())
    assert found.region == Everywhere()
    assert 1.7988 < float(found.value) <= 1.798805 + 6e-7


@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), p=st.sampled_from([1.0, 2.0, math.inf]))
def test_never_above_the_enumeration(seed: int, p: float):
    weights, biases = random_weights(seed, 3, 4, 2, 2)
    truth = exact_constant(weights, biases, HALF_BOX, p)
    found = Sampling(100, Metric(p, p))(network_of(weights, biases), HALF_BOX)
    assert float(found.value) <= truth * (1 + 1e-12)  # rounding of the oracle


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_is_found_exactly(dtype: torch.dtype):
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    network = chain([Dense(matrix)], RELU)
    truth = float(torch.linalg.svdvals(matrix.double()).max())
    for region in (Ball(torch.zeros(7), 1.0), Everywhere()):
        found = Sampling(4)(network, region)
        # What the proof loses: rounding errors of the evaluation over a distance of the size of the region.
        assert truth * (1 - 1e-9) <= float(found.value) <= truth * (1 + 1e-14)


def test_a_kink_does_not_fool_it():
    # f(x) = relu(x) - relu(-x) = x, but a product of one-sided derivatives at 0 may be 0, 1 or 2.
    ones = Dense(torch.tensor([[1.0], [-1.0]]))
    network = chain([ones, Dense(torch.tensor([[2.0, -2.0]]))], RELU)
    found = Sampling(1, points=torch.zeros(3, 1))(network, Ball(torch.zeros(1), 1.0))
    assert 1.999 < float(found.value) <= 2.0


def test_the_two_points_prove_it():
    network, region = reference_network(), Ball(torch.tensor([-0.4, -0.4]), 0.2)
    found = Sampling(50)(network, region)
    assert found.state is not None
    x, y = found.state
    for point in (x, y):
        assert float(torch.linalg.vector_norm(point - region.center)) <= 0.2
    quotient = (network(x[None]) - network(y[None])).abs() / torch.linalg.vector_norm(x - y)
    assert float(found.value) <= float(quotient) <= float(found.value) * (1 + 1e-6)


def test_where_rounding_wins_it_is_an_estimate():
    # A derivative of 1e-15 behind a constant of 1: float64 shows a few units in the last place, and proves nothing.
    network = chain([Dense(torch.tensor([[1e-15]]).double())], RELU, [torch.tensor([1.0]).double()])
    assert Sampling(4)(network, Ball(torch.zeros(1), 1.0)).kind is Kind.ESTIMATE


def test_proofs_subtract_what_float64_may_get_wrong():
    network = reference_network()
    x, y = (torch.tensor([-0.4, -0.4 + d], dtype=torch.float64) for d in (0.0, 1e-13))
    near = prover(network, Metric(2.0, 2.0))(x, y)
    assert near.value > 0
    assert near.proven < 0.99 * near.value  # two points a few hundred roundings apart
    far = prover(network, Metric(2.0, 2.0))(x, x - 0.5)
    assert 0 < far.value * (1 - 1e-12) <= far.proven <= far.value


def test_one_value_for_each_sample_and_their_profile():
    network, centers = reference_network(), torch.tensor([[0.0, 0.0], [2.0, 1.0], [-1.0, 0.5]])
    found = Sampling(50)(network, Ball(centers, 0.1))
    assert found.of is Scope.SAMPLE
    values = found.value.tolist()
    summary = profile(found, (0.0, 0.5, 1.0))
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.quantiles == pytest.approx((min(values), np.median(values), max(values)))
    assert "estimates" in str(summary)
    norms = Sampling(50).norms(network, Ball(centers, 0.1))
    assert norms.shape == (3, 50)
    assert profile(norms).largest <= max(values) * (1 + 1e-6)
    with pytest.raises(ArgumentError, match="levels"):
        profile(found, (2.0,))


def test_many_outputs_go_by_products():
    matrix = torch.randn(80, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = Sampling(4)(chain([Dense(matrix)], RELU), Ball(torch.zeros(6), 1.0))
    # Twenty power steps on six singular values.
    assert float(found.value) == pytest.approx(float(torch.linalg.svdvals(matrix).max()), rel=1e-2)


def test_jacobians_are_those_of_finite_differences():
    network = network_of(*random_weights(0, 3, 5, 3, 2), GELU)
    x, step = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 1e-6
    found = jacobians(network, x)
    for j in range(3):
        move = step * torch.eye(3, dtype=torch.float64)[j]
        change = (network(x + move) - network(x - move)) / (2 * step)
        torch.testing.assert_close(found[:, :, j], change, atol=1e-8, rtol=1e-6)  # a central difference


@pytest.mark.parametrize(
    ("p", "q"), [(1.0, 1.0), (2.0, 2.0), (math.inf, math.inf), (1.0, 2.0), (2.0, math.inf), (3.0, 1.5)]
)
def test_directions_attain_the_norms(p: float, q: float):
    matrix = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norms, directions = matrix_norms(matrix, Metric(p, q))
    lengths = torch.linalg.vector_norm(directions, ord=p, dim=1)
    images = torch.linalg.vector_norm(torch.einsum("boi,bi->bo", matrix, directions), ord=q, dim=1)
    torch.testing.assert_close(lengths, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(images, norms)
    if p == q and p != 3:
        torch.testing.assert_close(norms, torch.tensor([norm_of(m.numpy(), p) for m in matrix], dtype=torch.float64))
    with pytest.raises(MetricError):
        matrix_norms(matrix, Metric(math.inf, 2.0))


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0, math.inf])
def test_points_are_uniform_in_balls(p: float):
    # P(|x|_p <= r) = r^d: the mean of |x|^d is 1/2; 4000 points have it within 5 deviations of 0.29 / sqrt(4000).
    region = Ball(torch.zeros(3), 2.0, p)
    x = draw_points(region, (3,), 4000, torch.Generator().manual_seed(0))
    sizes = torch.linalg.vector_norm(x, ord=p, dim=1) / 2
    assert float(sizes.max()) <= 1
    assert float((sizes**3).mean()) == pytest.approx(0.5, abs=5 * 0.29 / math.sqrt(4000))
    assert float(x.mean(0).abs().max()) < 0.2


def test_points_are_put_back():
    far = torch.tensor([[3.0, 4.0], [0.1, 0.1]], dtype=torch.float64)
    back = move_inside(Ball(torch.zeros(2), 1.0), far)
    assert float(torch.linalg.vector_norm(back[0])) <= 1
    torch.testing.assert_close(back[0], far[0] / 5)
    assert torch.equal(back[1], far[1])
    assert torch.equal(move_inside(Box(torch.zeros(2), torch.ones(2)), far)[0], torch.ones(2, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="at least one"):
        Sampling(0)
