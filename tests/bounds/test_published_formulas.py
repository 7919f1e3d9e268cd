"""Counter-examples to printed formulas about whole networks, each beside the form that is used here instead."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipkit.bound import Kind, Metric
from lipkit.bounds import CLEVER, DAG, FastLip, LipLT, LipMIP, LipSDP, Local, Product, SeqLip
from lipkit.bounds.fold.block_norms import dominating_diagonals
from lipkit.bounds.sdp.cuts import cut_vertices, split_at
from lipkit.bounds.sdp.diagonal_maximum import Alignment
from lipkit.errors import KindError, MetricError, NeedsRegion
from lipkit.linops import Dense, LinearOperator, Reshape
from lipkit.nn.attention.l2_constants import l2_attention_constant, linf_attention_constant
from lipkit.norms import Power
from lipkit.regions import Ball, Box
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Attention, Identity, Pointwise, Softmax, WindowMax
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.powers import SQUARE
from support.networks.random_graphs import random_network
from support.networks.slope_chains import two_slopes
from support.printed import bounds as printed
from support.printed.bounds import matrix


def dense(*rows: list[float]) -> Dense:
    return Dense(matrix(*rows))


def value(method: DAG | LipSDP | LipLT | Product | SeqLip, network: Network) -> float:
    return float(method(network).value)


def ball(size: int, radius: float) -> Ball:
    return Ball(torch.zeros(size, dtype=torch.float64), radius)


def interval(low: float, high: float) -> Box:
    return Box(*matrix([low], [high]))


def self_attention(tokens: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Network:
    """One head on tokens side by side, as a network."""
    eye = torch.eye(tokens, dtype=torch.float64)
    blocks: dict[tuple[int, int], LinearOperator] = {
        (1, 0): Dense(torch.cat([torch.kron(eye, w.mT.contiguous()) for w in (q, k, v)])),
        (2, 1): Reshape((1, tokens, v.shape[1]), (tokens * v.shape[1],)),
    }
    node = Attention(1, tokens, tokens, q.shape[1], v.shape[1], scale)
    return Network((tokens * len(q),), (node,), blocks, target=(tokens * v.shape[1],))


ONE = matrix([1.0])


def test_gelu_is_steeper_than_the_tables_say() -> None:
    assert printed.gelu_slope() > 1.1 > 1
    alpha, beta = Pointwise(GELU, (1,)).slopes()
    assert printed.gelu_slope() <= float(beta) < 1.1289042
    assert float(alpha) <= 1 - printed.gelu_slope()
    # One after the other, each at the point where it is steepest.
    shift = math.sqrt(2) - float(nn.functional.gelu(matrix([math.sqrt(2)])))
    blocks: dict[tuple[int, int], LinearOperator] = {(k, k - 1): dense([1.0]) for k in (1, 2, 3)}
    steep = Network((1,), (Pointwise(GELU, (1,)),) * 2, blocks, {2: matrix([shift])[0]}, target=(1,))
    reached = printed.slope(steep, matrix([math.sqrt(2)]))
    assert 1.1**2 < 1.27 < reached <= value(DAG(), steep) < 1.2745


def test_softmax_has_one_half() -> None:
    reached = printed.slope(lambda z: torch.softmax(z, -1), torch.zeros(2, dtype=torch.float64))
    assert reached == 0.5 <= float(Softmax((2,)).log_constant(2.0).exp()) < 0.5 + 1e-12


def windows(size: int, kernel: int, stride: int, padding: int) -> Tensor:
    """The positions in each window of a square image, with an entry of the same window instead of the border."""
    starts = range(-padding, size + padding - kernel + 1, stride)
    axis = [[min(max(i + k, 0), size - 1) for k in range(kernel)] for i in starts]
    return torch.tensor([[i * size + j for i in rows for j in cols] for rows in axis for cols in axis])


def test_overlapping_windows_amplify() -> None:
    # One pixel in four windows of the first pooling of a ResNet.
    assert printed.pooled_impulse() == 2
    image = torch.randn(1, 1, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    constants = []
    for kernel, stride, padding in ((3, 2, 1), (2, 2, 0)):
        node = WindowMax((49,), windows(7, kernel, stride, padding))
        pooled = nn.functional.max_pool2d(image, kernel, stride, padding)
        assert torch.equal(node(image.flatten(1)), pooled.flatten(1))
        constants.append(float(node.log_constant(2.0).exp()))
    assert constants == pytest.approx([2, 1], rel=1e-12)
    assert printed.border_average() > 1.02


def test_a_shortcut_counts_with_its_own_constant() -> None:
    # 3 x + relu(x) / 2: the slope is 7/2, the main path has 1/2, and 1/2 + 1 is printed.
    blocks: dict[tuple[int, int], LinearOperator] = {(1, 0): dense([1.0]), (2, 1): dense([0.5]), (2, 0): dense([3.0])}
    network = Network((1,), (Pointwise(RELU, (1,)),), blocks, target=(1,))
    assert float(network(matrix([2.0]))[0, 0] - network(matrix([1.0]))[0, 0]) == 3.5 > 1.5
    assert value(DAG(), network) == pytest.approx(3.5, rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_the_norm_of_a_gradient_is_dual_to_that_of_the_input(p: float) -> None:
    row = torch.ones(1, 2, dtype=torch.float64)
    truth = {1.0: 1.0, 2.0: math.sqrt(2), math.inf: 2.0}[p]
    found = FastLip(Metric(p, math.inf))(chain([Dense(row)], RELU), ball(2, 1.0))
    assert float(found.value) == pytest.approx(truth, rel=1e-12)
    # |G'|_q knows nothing of p, and changes with the norm q of a number, which is its modulus for every q.
    as_printed = {
        float(norm(row, q)) for q in (1, math.inf) for norm in (torch.linalg.vector_norm, torch.linalg.matrix_norm)
    }
    assert as_printed == {1.0, 2.0}


def test_attention_is_not_flat_at_zero() -> None:
    hu = 2 * 3 * 0.1**2 * (1 + 1)
    truth = printed.slope(lambda x: printed.attention(x, ONE, ONE, ONE, 1.0), torch.zeros(2, 1, dtype=torch.float64))
    assert hu < 0.5 < truth == 1
    found = float(Local(DAG())(self_attention(2, ONE, ONE, ONE, 1.0), ball(2, 0.1)).value)
    assert truth <= found
    # sqrt n + (|x| + delta)^2 |A|, and the library is no worse up to what Q, K and V cost as three separate inputs.
    assert found <= math.sqrt(3) * (math.sqrt(2) + 0.1**2)


def test_the_score_matrix_is_of_the_size_of_a_token() -> None:
    as_printed = printed.castin(float((printed.KEY.mT @ printed.QUERY).norm()) / math.sqrt(2), 5.0, 2)
    right = printed.castin(float(torch.linalg.matrix_norm(printed.QUERY @ printed.KEY.mT, 2)) / math.sqrt(2), 5.0, 2)
    assert float(printed.CROSSED.norm()) < 5
    assert as_printed < 2.5 < 6 < printed.crossed() <= right
    network = self_attention(2, printed.QUERY, printed.KEY, printed.KEY, 2**-0.5)
    assert printed.crossed() <= float(Local(DAG())(network, ball(4, 5.0)).value) <= right


def test_dot_product_attention_has_no_constant_for_three_tokens() -> None:
    assert printed.kim(3) < printed.growing(3.0)
    # As the square of the input.
    assert printed.growing(100.0) / printed.growing(10.0) == pytest.approx(100, rel=0.01)
    with pytest.raises(NeedsRegion):
        DAG()(self_attention(3, ONE, ONE, ONE, 1.0))


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_the_bound_of_l2_attention_is_of_fourth_degree_in_the_queries(tokens: int, scale: float) -> None:
    rng = np.random.default_rng(tokens)
    q, v, o = (torch.from_numpy(rng.normal(size=(3, 3))) for _ in range(3))
    q = q / printed.spectral(q) * scale
    norms = printed.spectral(v) * printed.spectral(o)
    points = [torch.from_numpy(rng.normal(size=(tokens, 3))) / scale for _ in range(20)]
    truth = max(printed.slope(lambda x: printed.distance_attention(x, q, v, o), x) for x in points)
    as_printed = printed.kim(tokens) / math.sqrt(3) * scale * norms
    right = l2_attention_constant(tokens, 3, [scale], [printed.spectral(v)], printed.spectral(o))
    assert truth <= right
    assert right == pytest.approx(as_printed * scale, rel=1e-9)
    assert scale == 1 or truth > as_printed


def test_one_token_leaves_the_root_of_the_width() -> None:
    ones = torch.ones(4, 4, dtype=torch.float64)
    x = torch.ones(1, 4, dtype=torch.float64)
    moved = printed.distance_attention(2 * x, ones, ones, ones) - printed.distance_attention(x, ones, ones, ones)
    as_printed = 1 / 4 * 4 * (4 * 4) * 4
    assert as_printed == 64
    assert float(moved.abs().max()) == 128 <= linf_attention_constant(1, 4, [(4.0, 4.0)], [4.0], 4.0) < 128.001


def test_cutting_at_vertices_leaves_the_sum_over_paths_as_it_is() -> None:
    # (y - 3 relu(y)) o (x - 2 relu(x)), with an identity between.
    nodes = (Pointwise(RELU, (1,)), Pointwise(Identity(), (1,)), Pointwise(RELU, (1,)))
    steps = {(1, 0): 1.0, (2, 0): 1.0, (2, 1): -2.0, (3, 2): 1.0, (4, 2): 1.0, (4, 3): -3.0}
    network = Network((1,), nodes, {at: dense([w]) for at, w in steps.items()}, target=(1,))
    assert cut_vertices(network) == [2]
    parts = split_at(network, [2])
    cut = math.prod(value(Product(), part) for part in parts)
    assert [value(Product(), network), cut] == pytest.approx([12, 12])
    # What tightens is a better bound for a block.
    assert [value(LipSDP(), part) for part in parts] == pytest.approx([1, 2], rel=1e-5)
    for seed in range(8):
        network = random_network(seed)
        cut = math.prod(value(Product(), part) for part in split_at(network, cut_vertices(network)))
        # Sums of products in another order.
        assert cut == pytest.approx(value(Product(), network), rel=1e-9)


def test_the_radius_of_clever_belongs_to_the_margin() -> None:
    # Logits 10 x + 1 and x, at 0.
    logits = Network((1,), (), {(1, 0): dense([10.0], [1.0])}, {1: matrix([1.0, 0.0])[0]}, target=(2,))
    rival, margin = (logits.then(dense(row)) for row in ([0.0, 1.0], [1.0, -1.0]))
    as_printed, right = (1 / float(CLEVER(2, 4)(f, ball(1, 2.0)).value) for f in (rival, margin))
    crossing = logits(matrix([-1 / 9 - 1e-6]))[0]
    assert crossing[0] < crossing[1]
    assert as_printed == pytest.approx(1)
    assert right == pytest.approx(1 / 9)


def test_the_end_point_of_the_maxima_is_above_their_mean() -> None:
    network = chain([dense([1.0, 0.0, 0.0, 0.0, 0.0]), dense([0.5])], SQUARE)
    method, region = CLEVER(200, 256), ball(5, 1.0)
    mean, found = float(method.maxima(network, region).mean()), float(method(network, region).value)
    # The constant of x_1^2 / 2 on the unit ball is 1.
    assert mean < 0.92 < 0.96 < found < 1.04


def test_coordinate_wise_gradients_need_both_weights_and_absolute_values() -> None:
    cases = {3.0: ([3.0], [1.0], interval(-1, 1)), -3.0: ([3.0], [-1.0], interval(1, 2))}
    for product, (inner, outer, region) in cases.items():
        network = chain([dense(inner), dense(outer)], RELU)
        ends = network(matrix([float(region.high)], [float(region.high) - 0.1]))
        assert abs(float(ends[0, 0] - ends[1, 0])) / 0.1 == pytest.approx(3)
        found = float(FastLip()(network, region).value)
        assert found == pytest.approx(abs(product))
        assert found > (outer[0] * outer[0] if product > 0 else product)
    two = FastLip()(chain([dense([2.0, 2.0])], RELU), ball(2, 1.0))
    assert float(two.value) == pytest.approx(math.sqrt(8))
    assert float(two.value) > math.sqrt(2 + 2)
    assert two.kind is Kind.UPPER


def test_the_printed_alignment_can_be_looser_than_the_product() -> None:
    layers = [dense([1.0, 0.0], [0.0, 0.9])] * 2
    network = chain(layers, RELU)
    loose, tight = value(SeqLip(0, Alignment(printed=True)), network), value(SeqLip(0), network)
    assert loose == pytest.approx(printed.aligned(0.9, 1.0), rel=1e-9)
    assert loose > 1.3
    assert [value(Product(), network), tight] == pytest.approx([1, 1])


@pytest.mark.parametrize("n", [12, 50, 200])
def test_independent_layers_are_steeper_than_one_over_pi(n: int) -> None:
    assert printed.independent(n) > 1.5 / math.pi
    # Their leading singular vectors alone would say so, but the second singular values are as large.
    layers = np.random.default_rng(0).standard_normal((2, n, n))
    norms = np.linalg.svd(layers, compute_uv=False)
    assert (norms[:, 1] / norms[:, 0]).min() > 0.8
    if n == 12:
        network = chain([Dense(torch.from_numpy(layer)) for layer in layers], RELU)
        assert printed.independent(n) * norms[:, 0].prod() <= value(LipSDP(), network) <= norms[:, 0].prod()


def test_the_printed_inequality_of_lipsdp_does_not_contain_the_constant() -> None:
    assert np.linalg.eigvalsh(printed.printed_sdp()).max() < 0
    half, one = matrix([0.5, 1.0])[0]
    leaky = chain([dense([1.0]), dense([1.0])], two_slopes(half, one))
    assert float(leaky(matrix([2.0])) - leaky(matrix([1.0]))) == 1
    assert 1 <= value(LipSDP(), leaky) < 1 + 1e-5


def test_coupled_multipliers_prove_too_much() -> None:
    # relu(x) - relu(x - 5).
    blocks = {(1, 0): dense([1.0], [1.0]), (2, 1): dense([1.0, -1.0])}
    network = Network((1,), (Pointwise(RELU, (2,)),), blocks, {1: matrix([0.0, -5.0])[0]}, target=(1,))
    assert float(network(matrix([4.0])) - network(matrix([3.0]))) == 1
    assert np.linalg.eigvalsh(printed.coupled_sdp(0.0, 0.5)).max() <= 0
    assert 1 <= value(LipSDP(), network) < 1 + 1e-5
    # What the coupling assumes: (u - v)(s - t) >= (u - v)^2 for increments u = a s, v = b t with slopes a, b in [0, 1].
    quotient = [(a * s - b * t) * ((s - t) - (a * s - b * t)) for a, b, s, t in itertools.product((0, 1), repeat=4)]
    assert min(quotient) < 0


def test_the_chain_rule_set_is_larger_without_general_position() -> None:
    # relu(x) - relu(-x) = x.
    network = chain([dense([1.0], [-1.0]), dense([1.0, -1.0])], RELU)
    found = LipMIP()(network, interval(-1, 1))
    assert found.kind is Kind.UPPER
    assert float(found.value) == pytest.approx(2, rel=1e-5)
    assert found.lower is not None
    assert float(found.lower.value) == pytest.approx(1)
    with pytest.raises(MetricError, match="p_in = 1 or inf"):
        LipMIP(Metric(2.0, 2.0))
    # One affine layer, without a ReLU before or behind it.
    affine = LipMIP()(Network((1,), (), {(1, 0): dense([1.0])}, target=(1,)), interval(-2, -1))
    assert float(affine.value) == pytest.approx(1)


def test_the_weights_of_the_refinement_matter() -> None:
    g = np.array([[1.0, 3.0]])
    plain, weighed = dominating_diagonals(Dense(torch.from_numpy(g)))
    assert plain.square().numpy() == pytest.approx(printed.gershgorin(g, np.ones(2)), rel=1e-9)
    assert weighed.square().numpy() == pytest.approx(printed.gershgorin(g, np.array([1.0, 3.0])), rel=1e-9)
    for d in (plain, weighed):
        assert np.linalg.eigvalsh(np.diag(d.square().numpy()) - g.T @ g).min() >= -1e-12
    assert float(weighed.max()) < 3.2 < 3.4 < float(plain.max())


def test_power_iteration_makes_liplt_no_bound() -> None:
    network = chain([Dense(torch.from_numpy(printed.SPREAD)), Dense(torch.eye(16, dtype=torch.float64))], RELU)
    x = torch.eye(16, dtype=torch.float64)[:1]
    assert float((network(2 * x) - network(x)).norm()) == 1
    for passes in (1, 2, 5, 10):
        found = printed.liplt(printed.SPREAD, np.eye(16), lambda m, n=passes: printed.power_iteration(m, n))
        assert found < 0.999
    assert 1 <= value(LipLT(), network) < 1 + 1e-9
    with pytest.raises(KindError, match="no upper bound"):
        LipLT(norm=Power(10))(network)
