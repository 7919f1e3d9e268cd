"""Product, DAG and LipLT against every activation pattern, on random graphs and on networks with known constants."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import Bound, Kind, Metric
from lipkit.bounds import DAG, Best, LipLT, Method, Product
from lipkit.bounds.auto import smallest
from lipkit.errors import ArgumentError, KindError, MetricError, NeedsRegion
from lipkit.linops import Dense, Reshape, pad
from lipkit.norms import Lanczos, Power
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Activation, Identity, Pointwise
from lipkit.trace.rewrites.fuse import EveryOp, Junctions, Nowhere
from support.networks.random_graphs import jacobians, largest, random_network, reference_network

SEEDS = st.integers(0, 10**9)
# Brute force in numpy may be high by a few units in the last place of sums of ten products; nothing else is forgiven.
BELOW = 1 - 1e-13


def methods(p: float) -> list[Method]:
    metric = Metric(p, p)
    return [
        Product(metric=metric),
        *(DAG(cut=cut, metric=metric) for cut in (None, EveryOp(), Junctions(), Nowhere())),
        *(LipLT(window=window, metric=metric) for window in (None, 1, 2)),
        *([LipLT(refine=True)] if p == 2 else []),
    ]


@settings(max_examples=25)
@given(SEEDS, st.sampled_from([1.0, 2.0, math.inf]), st.sampled_from([torch.float32, torch.float64]), st.data())
def test_upper_bounds_dominate_every_activation_pattern(seed: int, p: float, dtype: torch.dtype, data: st.DataObject):
    network = random_network(seed, neurons=7, dtype=dtype)
    method = data.draw(st.sampled_from(methods(p)))
    bound = method(network)
    assert bound.kind is Kind.UPPER
    assert bound.metric == (p, p)
    assert float(bound.value) >= largest(jacobians(network), p) * BELOW


@pytest.mark.slow
@settings(max_examples=8)
@given(SEEDS, st.sampled_from([1.0, 2.0, math.inf]))
def test_liplt_is_at_most_dag_is_at_most_product(seed: int, p: float):
    network = random_network(seed, depth=5, neurons=40)
    metric = Metric(p, p)
    methods = (Product(metric=metric), DAG(metric=metric), LipLT(metric=metric))
    product, dag, plain = (float(method(network).value) for method in methods)
    # Norms of matrices this small are exact to 1e-12; the folds multiply at most seven of them.
    assert dag <= product * (1 + 1e-10)
    assert plain <= dag * (1 + 1e-10)
    if p == 2:
        assert float(LipLT(refine=True)(network).value) <= plain * (1 + 1e-10)


@settings(max_examples=8)
@given(SEEDS, st.sampled_from([1.0, 2.0, math.inf]))
def test_affine_networks_are_exact(seed: int, p: float):
    drawn = random_network(seed, depth=5)
    affine = Network(
        drawn.source,
        tuple(Pointwise(Identity(), node.shape) for node in drawn.nodes),
        drawn.blocks,
        drawn.biases,
        target=drawn.target,
    )
    (jacobian,) = jacobians(affine)
    truth = largest(jacobian[None], p)
    for method in (DAG(cut=Nowhere(), metric=Metric(p, p)), LipLT(metric=Metric(p, p))):
        # Products of up to six matrices whose entries may cancel: an error of 1e-13 times their sizes.
        slack = 1e-12 * math.prod(1 + largest(_matrix(op)[None], p) for op in drawn.blocks.values())
        assert truth * BELOW <= float(method(affine).value) <= truth * (1 + 1e-9) + slack


def _matrix(op):
    return op.apply(torch.eye(op.in_size, dtype=torch.float64)).numpy().T


def test_the_reference_network_to_all_printed_digits():
    network = reference_network()
    assert float(Product()(network).value) == pytest.approx(4.763786, abs=5e-7)
    assert largest(jacobians(network), 2.0) == pytest.approx(1.811049, abs=5e-7)
    assert float(LipLT()(network).value) < 4.763786


def test_a_single_hidden_layer_follows_the_formula():
    draw = torch.Generator().manual_seed(0)
    w, g, h = (torch.randn(*s, dtype=torch.float64, generator=draw) for s in ((5, 3), (2, 5), (2, 3)))
    network = Network(
        (3,), (Pointwise(RELU, (5,)),), {(1, 0): Dense(w), (2, 0): Dense(h), (2, 1): Dense(g)}, target=(2,)
    )
    norm = torch.linalg.matrix_norm
    for p, order in ((2.0, 2), (1.0, 1), (math.inf, math.inf)):
        expected = norm(h + g @ w / 2, order) + norm(g, order) * norm(w, order) / 2
        # Two norms of matrices with at most 15 entries: 1e-13 relative.
        assert float(LipLT(metric=Metric(p, p))(network).value) == pytest.approx(float(expected), rel=1e-12)
    t = (g.mT @ g).abs().sum(1)
    refined = norm(h + g @ w / 2, 2) + norm(t.sqrt()[:, None] * w, 2) / 2
    assert float(LipLT(refine=True)(network).value) <= float(refined) * (1 + 1e-12)


def test_concatenation_is_a_root_of_squares_and_a_sum_is_a_sum():
    eye = torch.eye(2, dtype=torch.float64)
    nodes = (Pointwise(RELU, (2,)), Pointwise(RELU, (2,)))
    both = {(1, 0): Dense(3 * eye), (2, 0): Dense(4 * eye)}
    joined = Network((2,), nodes, {**both, (3, 1): pad((2,), ((0, 2),)), (3, 2): pad((2,), ((2, 0),))}, target=(4,))
    summed = Network((2,), nodes, {**both, (3, 1): Reshape((2,), (2,)), (3, 2): Reshape((2,), (2,))}, target=(2,))
    # Exact numbers up to a few roundings.
    for metric, expected in ((Metric(2, 2), 5.0), (Metric(1, 1), 7.0), (Metric(math.inf, math.inf), 4.0)):
        assert float(DAG(metric=metric)(joined).value) == pytest.approx(expected, rel=1e-13)
    assert float(DAG()(summed).value) == pytest.approx(7.0, rel=1e-13)


def test_a_dense_block_of_joined_layers_is_measured_as_one_row():
    draw = torch.Generator().manual_seed(1)
    blocks, nodes = {}, []
    for k in range(1, 7):
        blocks |= {(k, j): Dense(torch.randn(8, 8, dtype=torch.float64, generator=draw) / 8) for j in range(k)}
        nodes.append(Pointwise(RELU, (8,)))
    blocks |= {(7, j): pad((8,), ((8 * j, 8 * (6 - j)),)) for j in range(7)}
    network = Network((8,), tuple(nodes), blocks, target=(56,))
    # The plain sum is far looser: the row norm and the root of squares are what wins here.
    assert float(DAG()(network).value) < 0.7 * float(Product()(network).value)


def test_long_compositions_keep_their_accuracy():
    """Rounding errors are weighed with the norms of the parts: 40 factors cost nothing, in either representation."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(12, 12, dtype=torch.float64, generator=draw) / 4 for _ in range(40)]
    affine = chain([Dense(w) for w in weights], Identity())
    whole = torch.linalg.multi_dot(list(reversed(weights)))
    truth = float(torch.linalg.matrix_norm(whole, 2))
    # The product of the norms is 1e9 times larger, and errors relative to it would show at 1e-7.
    assert float(Product()(affine).value) > 1e8 * truth
    assert truth * BELOW <= float(LipLT()(affine).value) <= truth * (1 + 1e-6)


def test_gradients_reach_the_weights():
    draw = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(*s, dtype=torch.float64, generator=draw, requires_grad=True) for s in ((4, 3), (4, 4), (2, 4))
    ]

    def value(method: Method, *ws: torch.Tensor) -> torch.Tensor:
        nodes = (Pointwise(RELU, (4,)), Pointwise(RELU, (4,)))
        skip = {(1, 0): Dense(ws[0]), (2, 1): Dense(ws[1]), (3, 1): Dense(ws[2]), (3, 2): Dense(ws[2])}
        return method(Network((3,), nodes, skip, target=(2,))).value

    for method in (Product(), DAG(), LipLT(), LipLT(refine=True)):
        assert torch.autograd.gradcheck(lambda *ws, m=method: value(m, *ws), weights, fast_mode=True), method


def test_failures_of_randomised_norms_add_up():
    network = chain([Dense(torch.randn(6, 6, dtype=torch.float64)) for _ in range(3)], RELU)
    bound = DAG(norm=Lanczos(failure=1e-4))(network)
    assert bound.failure == pytest.approx(3e-4, rel=1e-9)
    with pytest.raises(ArgumentError, match="add up"):
        DAG(norm=Lanczos(failure=0.5))(network)


def test_the_smallest_of_several_is_reported_with_all():
    network = reference_network()
    best = Best((Product(), LipLT(), DAG()))(network)
    assert str(best.method) == "LipLT"
    assert [str(part.method) for part in best.parts] == [str(m) for m in (Product(), LipLT(), DAG())]
    with pytest.raises(ArgumentError, match="at least one method"):
        Best(())


def test_lower_bounds_are_not_taken_for_norms():
    with pytest.raises(KindError, match="no upper bound"):
        DAG(norm=Power())(reference_network())


def test_bad_arguments_are_named():
    with pytest.raises(ArgumentError, match=r"window must be at least 1.*got 0"):
        LipLT(window=0)
    with pytest.raises(MetricError, match="refine"):
        LipLT(refine=True, metric=Metric(1, 1))
    with pytest.raises(MetricError, match="no closed form"):
        DAG(metric=Metric(math.inf, 2.0))(reference_network())


def test_mixed_metrics_measure_the_input_and_the_output_apart():
    network = reference_network()
    # From l1 every closed form exists; the all-pattern constant in l1 -> linf is the largest entry of a Jacobian.
    truth = float(abs(jacobians(network)).max())
    assert float(DAG(metric=Metric(1.0, math.inf))(network).value) >= truth


def test_what_is_not_lipschitz_is_named():
    @dataclass(frozen=True)
    class Unbounded(Activation):
        def __call__(self, z):
            return z * z

        def slopes(self, low, high):
            return 2 * low, 2 * high

        def values(self, low, high):
            return torch.zeros_like(low), torch.maximum(low * low, high * high)

        def bends(self, low, high):
            return torch.full_like(low, 2.0), torch.full_like(low, 2.0)

    network = chain([Dense(torch.eye(2)), Dense(torch.eye(2))], Unbounded())
    for method in (Product(), DAG(), LipLT()):
        with pytest.raises(NeedsRegion, match=r"row 1.*bounded region"):
            method(network)


@pytest.mark.parametrize("scale", [1e-60, 1e-100, 1e-120])
def test_small_weights_do_not_vanish_in_squares(scale: float):
    eye = torch.eye(2, dtype=torch.float64)
    network = chain([Dense(eye), Dense(scale * eye)], RELU)
    for method in (DAG(), LipLT(), LipLT(refine=True)):
        assert float(method(network).value) >= scale


def test_a_random_winner_pays_for_all_that_were_looked_at():
    values = [(2.0, 0.0), (3.0, 0.1), (1.0, 0.2)]
    bounds = [replace(Bound.from_value(v, Kind.UPPER, "test"), failure=f) for v, f in values]
    assert smallest(bounds).failure == pytest.approx(0.3)
    assert smallest(bounds[:2]).failure == 0
