"""The reduced system is the network; its bounds hold, order as they should, and are proven, not believed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import Metric, Scope
from lipkit.bounds.local.condensed import Condensed, largest_column_sum, largest_row_sum
from lipkit.bounds.local.fast_lip import FastLip, largest_norm
from lipkit.bounds.local.jacobian_intervals import slopes_of
from lipkit.bounds.local.measured_network import measure_network
from lipkit.bounds.local.ranges import Intervals, ranges
from lipkit.bounds.local.small_gain import small_gain
from lipkit.bounds.local.uncertain_slopes import Uncertain, uncertain
from lipkit.bounds.lower.sampling import jacobians
from lipkit.errors import ArgumentError, TooLargeError
from lipkit.regions import Ball, Box
from lipkit.trace import Network
from lipkit.trace.nodes.activations.sigmoids import TANH
from support.networks.local_oracles import (
    HALF_BOX,
    exact_constant,
    network_of,
    norm_of,
    points_in,
    random_weights,
    reference_network,
)
from support.networks.random_graphs import random_network


def reduced(network: Network, region: Ball | Box) -> Uncertain:
    found = measure_network(network)
    return uncertain(found, slopes_of(found, ranges(network, region)), 1000)


@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_the_reduced_system_has_the_networks_jacobians(seed: int):
    # Every Jacobian at a point is C + G D (I - N D)^-1 P for the D of that point; a random graph with skips.
    network = random_network(seed, depth=4, width=3)
    region = Ball(torch.zeros(network.source), 1.0)
    system = reduced(network, region)
    c, g, n, p = (span.mid.numpy() for span in (system.c, system.g, system.n, system.p))
    size = len(p)
    slopes = slopes_of(measure_network(network), ranges(network, region))
    for x in points_in(region, 3):
        value = network.values(x[None])
        found: list[np.ndarray] = []
        for k, (alpha, beta) in slopes.items():
            z = torch.zeros((1, *network.shape_into(k)), dtype=torch.float64)
            z = z + network.biases[k].double() if k in network.biases else z
            for j, op in network.row(k).items():
                z = z + op.to(torch.float64).apply(value[j])
            z = z.detach().requires_grad_()
            slope = torch.autograd.grad(network.nodes[k - 1](z).sum(), z)[0][0]
            found.append((slope - (alpha + beta) / 2)[alpha < beta].numpy())
        d = np.diag(np.concatenate([*found, np.zeros(0)]))
        assert bool((np.abs(np.diag(d)) <= system.spread.numpy() + 1e-15).all())
        rebuilt = c + g @ d @ np.linalg.inv(np.eye(size) - n @ d) @ p
        truth = jacobians(network, x[None])[0].numpy()
        # Rounding of a small inverse.
        np.testing.assert_allclose(rebuilt, truth, atol=1e-9 * (1 + np.abs(truth).max()))


@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), radius=st.sampled_from([0.05, 0.5]), p=st.sampled_from([1.0, 2.0, math.inf]))
def test_not_below_the_enumeration(seed: int, radius: float, p: float):
    weights, biases = random_weights(seed, 3, 4, 2, 2)
    region = Box(torch.full((2,), -radius), torch.full((2,), radius))
    truth = exact_constant(weights, biases, region, p)
    network = network_of(weights, biases)
    assert float(Condensed(Metric(p, p))(network, region).value) >= truth * (1 - 1e-12)  # rounding of the oracle
    if p == 2:
        assert float(reduced(network, region).by_blocks()) >= truth * (1 - 1e-12)


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_absolute_sums_gain_where_rows_cancel(p: float):
    # Sixteen inputs of known signs: the chords remember that one uncertain slope moves all of them.
    weights, biases = random_weights(8, 3, 10, 16, 6)
    network, region = network_of(weights, biases), Ball(torch.full((16,), 0.1), 0.05, math.inf)
    sampled = max(norm_of(j, p) for j in jacobians(network, points_in(region, 500)).numpy())
    system = reduced(network, region)
    width = system.width()
    low, high = system.c.mid - width, system.c.mid + width
    entries = float(largest_norm(low, high, Metric(p, p)).exp())
    sums = float((largest_row_sum if p == math.inf else largest_column_sum)(system, low, high))
    assert sampled * (1 - 1e-12) <= sums < entries


def test_the_semidefinite_figure_of_the_reference_network():
    # All seven neurons are uncertain on the box: the multipliers are those of LipSDP-Neuron, published as 1.885111.
    tight = Condensed(rtol=1e-6)(reference_network(), HALF_BOX)
    assert 1.885110 <= float(tight.value) <= 1.885111 * (1 + 2e-6)
    coarse = Condensed(rtol=0.5)(reference_network(), HALF_BOX)
    assert float(tight.value) <= float(coarse.value) <= 1.885111 * math.sqrt(1.5)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_multipliers_do_not_mind_the_scale(scale: float):
    weights, biases = random_weights(0, 3, 6, 4, 3)
    weights[0] = weights[0] * scale
    region = Ball(torch.zeros(4), 0.5 / scale)
    found = float(Condensed(rtol=1e-4)(network_of(weights, biases), region).value) / scale
    plain = random_weights(0, 3, 6, 4, 3)
    same = float(Condensed(rtol=1e-4)(network_of(*plain), Ball(torch.zeros(4), 0.5)).value)
    assert found == pytest.approx(same, rel=2e-4)  # each within rtol / 2 of one optimum


def test_smooth_activations_and_sampled_jacobians():
    network = network_of(*random_weights(2, 3, 6, 3, 2), TANH)
    region = Ball(torch.tensor([0.2, -0.1, 0.5]), 0.2)
    sampled = max(norm_of(j, 2.0) for j in jacobians(network, points_in(region, 500)).numpy())
    found, intervals = (float(m(network, region).value) for m in (Condensed(), FastLip()))
    assert sampled <= found <= intervals
    assert found <= 1.25 * sampled  # 1.07 when it was written; a blunder would show as a factor


def test_proofs_do_not_need_the_optimiser(monkeypatch: pytest.MonkeyPatch):
    # With bad multipliers the bound is worse, and still one.
    from lipkit.bounds.local import small_gain as _small_gain

    weights, biases = random_weights(5, 3, 5, 2, 2)
    network, region = network_of(weights, biases), HALF_BOX
    system = reduced(network, region)
    good = float(small_gain(system, 1e-3))
    monkeypatch.setattr(_small_gain._Program, "minimised", lambda _self, _s, t, _rtol: t * 3.0)
    bad = float(small_gain(system, 1e-3))
    assert exact_constant(weights, biases, region, 2.0) * (1 - 1e-12) <= good < bad


def test_exact_where_all_neurons_are_stable():
    weights, biases = random_weights(4, 3, 6, 4, 2)
    network, center = network_of(weights, biases), torch.tensor([0.4, -0.3, 0.8, 0.1], dtype=torch.float64)
    truth = torch.linalg.svdvals(jacobians(network, center[None])[0]).max()
    found = Condensed()(network, Ball(center, 1e-4))
    assert float(found.value) == pytest.approx(float(truth), rel=1e-9)
    assert float(found.value) >= float(truth) * (1 - 1e-14)


def test_a_batch_and_the_limits():
    centers = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    found = Condensed(slopes=Intervals())(reference_network(), Ball(centers, 0.1))
    assert found.of is Scope.SAMPLE
    with pytest.raises(TooLargeError, match="7 slopes are uncertain"):
        Condensed(limit=3)(reference_network(), HALF_BOX)
    with pytest.raises(ArgumentError, match="rtol"):
        Condensed(rtol=0.0)
