"""Lines stay on their side of the activation, and the ranges they give are sound, tight, and never wider."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Metric
from lipkit.bounds.local.activation_lines import lines
from lipkit.bounds.local.ranges import Intervals, ranges
from lipkit.bounds.local.relaxation import Relaxation, functional
from lipkit.bounds.lower.difference_quotients import prover
from lipkit.errors import ArgumentError
from lipkit.linops import Dense
from lipkit.regions import Ball, Box
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Activation, Identity, PiecewiseLinear, Pointwise, Softmax
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.powers import EXP, SQRT
from lipkit.trace.nodes.activations.sigmoids import SIGMOID, TANH
from support.networks.local_oracles import network_of, points_in, random_weights
from support.networks.random_graphs import ABS, LEAKY
from support.networks.rational_networks import evaluated, rational

HARDTANH = PiecewiseLinear("hardtanh", torch.nn.functional.hardtanh, (-1.0, 1.0), (0.0, 1.0, 0.0))
ACTIVATIONS = (RELU, LEAKY, ABS, HARDTANH, TANH, SIGMOID, GELU, EXP, Identity())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@settings(max_examples=15)
@given(low=st.floats(-20, 20), width=st.one_of(st.just(0.0), st.floats(1e-8, 1e-3), st.floats(0.01, 30)))
def test_lines_stay_on_their_side(activation: Activation, low: float, width: float):
    ends = torch.tensor([low], dtype=torch.float64), torch.tensor([low + width], dtype=torch.float64)
    found = lines(activation, *ends)
    z = torch.linspace(float(ends[0]), float(ends[1]), 500, dtype=torch.float64)
    y = activation(z)
    # The activation itself is evaluated here to a few units in the last place.
    slack = 1e-14 * (1 + y.abs())
    assert bool((found.upper_slope * z + found.upper_shift >= y - slack).all())
    assert bool((found.lower_slope * z + found.lower_shift <= y + slack).all())


def test_relu_has_its_triangle():
    low, high = torch.tensor([-1.0, -3.0, 1.0, -2.0]).double(), torch.tensor([3.0, 1.0, 2.0, -1.0]).double()
    found = lines(RELU, low, high)
    # y <= u (z - l) / (u - l); y >= z where the positive part is longer, 0 otherwise; exact lines where stable.
    np.testing.assert_allclose(found.upper_slope, [0.75, 0.25, 1.0, 0.0], atol=1e-13)
    np.testing.assert_allclose(found.upper_shift, [0.75, 0.75, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.lower_slope, [1.0, 0.0, 1.0, 0.0], atol=1e-13)
    np.testing.assert_allclose(found.lower_shift, [0.0, 0.0, 0.0, 0.0], atol=1e-12)


def test_smooth_lines_are_second_order_close():
    # The gap of two good lines is at most the curvature times the squared width; |tanh''| < 0.8.
    for width in (0.5, 0.05):
        low = torch.linspace(-2, 2, 41, dtype=torch.float64)
        found = lines(TANH, low, low + width)
        mid = low + width / 2
        gap = (found.upper_slope - found.lower_slope) * mid + found.upper_shift - found.lower_shift
        assert float(gap.max()) < 0.8 * width**2


def test_infinite_slopes_and_ends_give_constants():
    inf = math.inf
    found = lines(TANH, torch.tensor([-inf, 0.0]).double(), torch.tensor([inf, 1.0]).double())
    assert float(found.upper_slope[0]) == 0
    # The limits of tanh, rounded outward.
    np.testing.assert_allclose([float(found.lower_shift[0]), float(found.upper_shift[0])], [-1.0, 1.0], atol=1e-9)
    steep = lines(SQRT, torch.tensor([0.0]).double(), torch.tensor([4.0]).double())
    assert float(steep.upper_slope) == 0
    assert float(steep.upper_shift) == pytest.approx(2.0)


@settings(max_examples=4)
@given(seed=st.integers(0, 10**6), radius=st.sampled_from([0.01, 0.3]), p=st.sampled_from([1.0, 2.0, math.inf]))
def test_never_wider_than_intervals_and_sound(seed: int, radius: float, p: float):
    network = network_of(*random_weights(seed, 4, 6, 3, 2), TANH if seed % 2 else RELU)
    center = torch.from_numpy(np.random.default_rng(seed).normal(size=3))
    region = Ball(center, radius, p)
    outputs = network(points_in(region, 300))
    coarse, fine = ranges(network, region, Intervals()), ranges(network, region, Relaxation())
    for wide, narrow in zip(coarse, fine, strict=True):
        assert bool((narrow.low >= wide.low).all() and (narrow.high <= wide.high).all())
    # Rounding of the evaluation here.
    assert bool((outputs >= fine[-1].low - 1e-12).all() and (outputs <= fine[-1].high + 1e-12).all())


def test_exact_where_nothing_is_uncertain():
    # On a small ball all neurons are stable: the output is affine, and its range is that of a row norm.
    weights, biases = random_weights(4, 3, 6, 4, 2)
    center = np.array([0.4, -0.3, 0.8, 0.1])
    region = Ball(torch.from_numpy(center), 1e-4)
    network = network_of(weights, biases)
    reach = ranges(network, region, Relaxation())[-1]
    on, x = np.eye(4), center
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        z = w @ x + b
        on, x = np.diag(z > 0) @ w @ on, np.maximum(z, 0)
    width = 2e-4 * np.linalg.norm(weights[-1] @ on, axis=1)
    np.testing.assert_allclose((reach.high - reach.low).numpy(), width, rtol=1e-8)


def test_nodes_without_lines_are_replaced_by_their_reach():
    rng = np.random.default_rng(0)
    dense = [Dense(torch.from_numpy(rng.normal(size=(3, 3)))) for _ in range(3)]
    nodes = (Pointwise(RELU, (3,)), Softmax((3,)))
    network = Network((3,), nodes, {(1, 0): dense[0], (2, 1): dense[1], (3, 2): dense[2]}, target=(3,))
    region = Box(torch.full((3,), -0.2), torch.full((3,), 0.4))
    outputs, reach = network(points_in(region, 2000)), ranges(network, region, Relaxation())[-1]
    assert bool((outputs >= reach.low - 1e-12).all() and (outputs <= reach.high + 1e-12).all())
    assert bool((reach.high - reach.low < dense[2].weight.abs().sum(1)).all())  # narrower than all of the simplex


@pytest.mark.parametrize("balls", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_one_combination_of_outputs_is_enclosed_with_its_rounding(seed: int, balls: bool):
    weights, biases = random_weights(seed, 4, 6, 3, 5)
    # Numbers of many sizes, so that sums round.
    network = network_of([w * 10.0 ** (2 * (k % 3) - 2) for k, w in enumerate(weights)], biases)
    generator = torch.Generator().manual_seed(seed)
    x, v = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, 5))
    # Outputs that all but cancel against the last bias: what is left is the rounding itself.
    biases[-1] = biases[-1] - network(x[None])[0].numpy()
    network = network_of([w * 10.0 ** (2 * (k % 3) - 2) for k, w in enumerate(weights)], biases)
    low, high = functional(network, balls)(Box(x, x), v)
    exact = sum(a * b for a, b in zip(rational(v), evaluated(network, rational(x)), strict=True))
    assert low <= exact <= high
    # What is between them is rounding: of some hundred operations on values of this size.
    size = float((v.abs() * network(x[None])[0].abs()).sum())
    assert high - low <= 1e-9 * (1 + size)
    ball = Ball(x, 0.1)
    low, high = functional(network, balls)(ball, v)
    values = network(points_in(ball, 300)) @ v
    assert low - 1e-9 <= float(values.min()) <= float(values.max()) <= high + 1e-9
    # Never wider than the outputs one by one, but for rounding.
    reach = ranges(network, ball, Intervals(balls))[-1]
    assert high - low <= float((v.abs() * (reach.high - reach.low)).sum()) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("balls", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_rounded_coefficients_are_counted(seed: int, depth: int, balls: bool):
    weights, biases = random_weights(seed, depth, 6, 3, 5)
    generator = torch.Generator().manual_seed(seed)
    x, v = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, 5))
    # Every output is orthogonal to v up to rounding: carried back, the coefficients are differences of large terms,
    # wrong by their own size, and what is relative to the coefficients themselves is too little.
    onto = np.outer(v.numpy(), v.numpy()) / float(v @ v)
    weights[-1], biases[-1] = weights[-1] - onto @ weights[-1], biases[-1] - onto @ biases[-1]
    network = network_of(weights, biases)
    low, high = functional(network, balls)(Box(x, x), v)
    exact = sum(a * b for a, b in zip(rational(v), evaluated(network, rational(x)), strict=True))
    assert low <= exact <= high
    # Some hundred roundings of the terms of each layer, whose absolute values do not cancel.
    size = x.abs()
    for w, b in zip(weights, biases, strict=True):
        size = torch.from_numpy(np.abs(w)) @ size + torch.from_numpy(np.abs(b))
    assert high - low <= 1e-13 * float(v.abs() @ size)


@pytest.mark.parametrize(
    ("weights", "truth"),
    [((1e300, 1e-200, 1e-200), 1e-100), ((1e250, 1e-150, 1e-173), 1e-73), ((3e161, 1e-160, 1e-160), 3e-159)],
)
def test_coefficients_that_vanish_are_counted(weights: tuple[float, ...], truth: float):
    # Carried back, the coefficient is 1e-400, which is no number, or 1e-320, which has three digits.
    network = chain([Dense(torch.tensor([[w]], dtype=torch.float64)) for w in weights], RELU)
    one, more = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 1.0001))
    reach = ranges(network, Box(one, one), Relaxation())[-1]
    assert float(reach.low) <= truth * (1 + 1e-12)
    assert float(reach.high) >= truth * (1 - 1e-12)
    assert prover(network, Metric(2.0, 2.0))(more, one).proven <= truth


def test_distances_among_the_smallest_numbers_are_not_too_small():
    first, second = (torch.tensor(w, dtype=torch.float64) for w in ([[1e200, 1e200]], [[1e100]]))
    network = chain([Dense(first), Dense(second)], RELU)
    u = 5e-324
    for k in (1, 2, 4, 10, 100):
        x = torch.full((2,), k * u, dtype=torch.float64)
        found = prover(network, Metric(2.0, 2.0))(x, torch.zeros(2, dtype=torch.float64)).proven
        assert found <= math.sqrt(2) * 1e300


@pytest.mark.parametrize("p_out", [1.0, math.inf])
@pytest.mark.parametrize("seed", range(4))
def test_quotients_are_proven_in_every_output_norm(seed: int, p_out: float):
    network = network_of(*random_weights(seed, 3, 6, 3, 4))
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(2))
    prove = prover(network, Metric(math.inf, p_out))
    for other in (y, x + 1e-9 * y):
        pair = prove(x, other)
        rise = [abs(a - b) for a, b in zip(*(evaluated(network, rational(at)) for at in (x, other)), strict=True)]
        run = max(abs(a - b) for a, b in zip(rational(x), rational(other), strict=True))
        exact = (sum(rise) if p_out == 1 else max(rise)) / run
        assert Fraction(pair.proven) <= exact
        # Rounding of some hundred operations is 1e-13 of the values, of which 1e-9 is what is seen.
        assert pair.proven >= float(exact) * (1 - 1e-3)


def test_a_limit_leaves_the_rest_to_intervals():
    network = network_of(*random_weights(1, 4, 8, 3, 2))
    region = Ball(torch.zeros(3), 0.5)
    coarse, some, fine = (
        ranges(network, region, m)[-1].radius for m in (Intervals(), Relaxation(limit=1), Relaxation())
    )
    assert fine <= some <= coarse
    assert fine < coarse
    with pytest.raises(ArgumentError, match="at least 1"):
        Relaxation(limit=0)
