"""SeqLip and the alignment bound against every activation pattern, the survey's network, and published formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import Kind
from lipkit.bounds import Product
from lipkit.bounds.sdp.diagonal_maximum import Alignment, Exhaustive, Greedy, Pair, dominated
from lipkit.bounds.sdp.seqlip import SeqLip
from lipkit.errors import ArgumentError, TooLargeError
from lipkit.linops import Dense
from lipkit.regions import Ball
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Identity, Pointwise
from support.networks.lipschitz_nets import trained
from support.networks.random_graphs import reference_network
from support.networks.slope_chains import BELOW, all_corners, random_chain

SEEDS = st.integers(0, 10**9)


def random_pair(seed: int, width: int = 6) -> Pair:
    rng = np.random.default_rng(seed)
    n, rows, cols = (int(k) for k in rng.integers(1, width + 1, size=3))
    low = rng.choice([0.0, 0.0, -1.0, 0.3], size=n)
    high = np.where(rng.random(n) < 0.7, 1.0, np.maximum(low, 0.4))
    outer, inner = (torch.from_numpy(rng.normal(size=s)) for s in ((rows, n), (n, cols)))
    return Pair(outer, inner, torch.from_numpy(low), torch.from_numpy(high))


def brute_force(pair: Pair) -> float:
    n = len(pair.low)
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    corners = np.where(bits, pair.high.numpy(), pair.low.numpy())
    found = pair.outer.numpy() @ (corners[:, :, None] * pair.inner.numpy())
    return float(np.linalg.norm(found, ord=2, axis=(1, 2)).max())


def test_reference_values_of_the_survey_network():
    network = reference_network()
    tight, printed = SeqLip(0), SeqLip(0, Alignment(printed=True))
    # Six digits are printed.
    assert float(SeqLip()(network).value) == pytest.approx(2.187762, abs=1e-6)
    assert float(tight(network).value) == pytest.approx(3.175571, abs=1e-6)
    assert float(printed(network).value) == pytest.approx(3.702141, abs=1e-6)
    greedy = SeqLip(0, Greedy())(network)
    assert greedy.kind is Kind.ESTIMATE
    assert float(greedy.value) <= 2.187762


@settings(max_examples=40)
@given(SEEDS)
def test_all_ways_to_a_maximum_agree_with_brute_force(seed: int):
    pair = random_pair(seed)
    truth = brute_force(pair)
    exhaustive, kind = Exhaustive()(pair)
    assert kind is Kind.UPPER
    # Rounding of a handful of small products and one proven norm.
    assert truth * BELOW <= exhaustive <= truth * (1 + 1e-11)
    alignment, kind = Alignment()(pair)
    assert kind is Kind.UPPER
    norms = np.linalg.norm(pair.outer.numpy(), 2) * np.linalg.norm(pair.inner.numpy(), 2)
    assert truth * BELOW <= alignment <= norms * (1 + 1e-11)
    assert Alignment(printed=True)(pair)[0] >= alignment * BELOW
    greedy, kind = Greedy()(pair)
    assert kind is Kind.ESTIMATE
    assert greedy <= truth * (1 + 1e-12)


def test_greedy_search_often_finds_the_maximum():
    found = [Greedy()(pair)[0] > 0.999 * brute_force(pair) for pair in map(random_pair, range(60))]
    # Measured: 60 of 60.
    assert sum(found) >= 54


@settings(max_examples=12)
@given(SEEDS)
def test_any_slopes_dominate_every_pattern(seed: int):
    network, matrices, slopes = random_chain(seed)
    truth = all_corners(matrices, slopes)
    product = float(Product()(network).value)
    for method in (SeqLip(), SeqLip(2), SeqLip(0)):
        bound = method(network)
        assert bound.kind is Kind.UPPER
        # The product is of proven norms, each of which may be a little high, and so may ours.
        assert truth * BELOW <= float(bound.value) <= product * (1 + 1e-6)


def test_printed_form_can_exceed_the_product():
    # Orthogonal layers have no gap: the printed factor is sqrt(3) a layer where the product is already exact.
    generator = torch.Generator().manual_seed(3)
    rotations = [torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))[0] for _ in range(3)]
    network = chain([Dense(q) for q in rotations], RELU)
    # Ratios of 1: (1 - 1 - 1) alpha + 1 + 1 + 1 >= 2, once for each of two activations.
    assert float(SeqLip(0, Alignment(printed=True))(network).value) >= 2.0
    assert float(SeqLip(0)(network).value) == pytest.approx(1.0, abs=1e-9)


def test_limit_of_one_over_pi_is_no_bound():
    # Independent Gaussian layers are far from the 1/pi for each activation that is suggested for them.
    generator = torch.Generator().manual_seed(0)
    network = chain([Dense(torch.randn(12, 12, generator=generator, dtype=torch.float64)) for _ in range(2)], RELU)
    product = float(Product()(network).value)
    assert float(SeqLip()(network).value) > 1.5 * product / math.pi


def test_linear_nodes_are_merged():
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    nodes = (Pointwise(RELU, (3,)), Pointwise(Identity(), (3,)))
    apart = Network((3,), nodes, {(1, 0): Dense(a), (2, 1): Dense(b), (3, 2): Dense(c)}, target=(3,))
    merged = chain([Dense(a), Dense(c @ b)], RELU)
    assert float(SeqLip()(apart).value) == pytest.approx(float(SeqLip()(merged).value), rel=1e-10)


def test_wide_layers_of_float32_weights():
    network = trained("fnn3_seed0")
    bound, greedy = SeqLip()(network), SeqLip(beyond=Greedy())(network)
    assert greedy.kind is Kind.ESTIMATE
    assert float(greedy.value) < float(bound.value) <= float(Product()(network).value)


def test_deep_chains_and_zero():
    generator = torch.Generator().manual_seed(2)
    deep = [Dense(1e30 * torch.randn(2, 2, generator=generator, dtype=torch.float64)) for _ in range(40)]
    bound = SeqLip()(chain(deep, RELU))
    assert float(Product()(chain(deep, RELU)).log_value) > float(bound.log_value) > 2000
    zero = torch.zeros(2, 2)
    assert float(SeqLip()(chain([Dense(zero), Dense(torch.eye(2))], RELU)).value) == 0.0
    region = Ball(torch.zeros(2), 1.0)
    assert SeqLip()(chain([Dense(torch.eye(2))], RELU), region).region == region


@settings(max_examples=25)
@given(SEEDS)
def test_leading_singular_values_are_dominated(seed: int):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=rng.integers(1, 8, size=2)) * 10.0 ** rng.integers(-3, 4)
    if rng.random() < 0.3:
        matrix = np.linalg.qr(matrix)[0]
    found = dominated(torch.from_numpy(matrix))
    w = found.vector.numpy()[:, None]
    form = found.top * ((1 - found.ratio) * w @ w.T + found.ratio * np.eye(len(w))) - matrix @ matrix.T
    # eigvalsh itself is off by a few units in the last place of the norm.
    assert np.linalg.eigvalsh(form).min() >= -1e-14 * found.top
    values = np.linalg.svd(matrix, compute_uv=False)
    assert found.top == pytest.approx(values[0] ** 2, rel=1e-10)


def test_refusals():
    with pytest.raises(ArgumentError, match="exhaustive"):
        SeqLip(exhaustive=30)
    ones = torch.ones(4, dtype=torch.float64)
    with pytest.raises(TooLargeError, match="Alignment"):
        Exhaustive(3)(Pair(ones[None], ones[:, None], 0 * ones, ones))
