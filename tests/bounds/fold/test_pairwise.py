"""Constants of differences of outputs against the same methods on each difference, and against closed forms."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import Metric, Scope
from lipkit.bounds import DAG, LipLT, PairwiseDAG, PairwiseLipLT
from lipkit.bounds.fold import pairwise
from lipkit.errors import ShapeError
from lipkit.linops import Dense, Reshape
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Identity
from support.networks.random_graphs import jacobians, random_network


def dense(seed: int, *sizes: int) -> list[Dense]:
    draw = torch.Generator().manual_seed(seed)
    pairs = itertools.pairwise(sizes)
    return [Dense(torch.randn(m, n, dtype=torch.float64, generator=draw)) for n, m in pairs]


def difference(network: Network, a: int, b: int) -> Network:
    row = torch.zeros(1, *network.target, dtype=torch.float64)
    row[0, a], row[0, b] = 1.0, -1.0
    return network.then(Dense(row))


def test_an_affine_classifier_has_the_distances_of_its_rows():
    (last,) = dense(0, 6, 5)
    network = chain([last], Identity())
    for p, q in ((2.0, 2.0), (1.0, math.inf), (math.inf, 1.0)):
        expected = torch.cdist(last.weight, last.weight, p=q)
        for method in (PairwiseDAG(metric=Metric(p, p)), PairwiseLipLT(metric=Metric(p, p))):
            bound = method(network)
            assert bound.of is Scope.PAIR
            # Sums of six terms; cdist itself is accurate to 1e-15 of the norms here.
            torch.testing.assert_close(bound.value, expected, rtol=1e-12, atol=1e-14)


@settings(max_examples=12)
@given(st.integers(0, 10**6))
def test_pairs_agree_with_the_method_on_each_difference(seed: int):
    network = chain(dense(seed, 4, 6, 5, 4), RELU)
    for method, one in ((PairwiseDAG(), DAG()), (PairwiseLipLT(), LipLT()), (PairwiseLipLT(window=1), LipLT(window=1))):
        found = method(network).value
        assert torch.equal(found, found.mT)
        assert not found.diagonal().any()
        for a, b in ((0, 1), (3, 2)):
            # The same numbers by another order of sums; the whole-network method may also take the plain fold.
            expected = float(one(difference(network, a, b)).value)
            assert expected * (1 - 1e-10) <= float(found[a, b])
            if not isinstance(one, LipLT):
                assert float(found[a, b]) <= expected * (1 + 1e-10)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_no_activation_pattern_exceeds_its_pair(seed: int):
    network = random_network(seed, neurons=7)
    rows = jacobians(network)
    for method in (PairwiseDAG(), PairwiseLipLT()):
        found = method(network).value
        for a in range(network.target[0]):
            for b in range(a):
                slopes = ((rows[:, a] - rows[:, b]) ** 2).sum(-1).max() ** 0.5
                # Brute force in numpy may be high by a few roundings.
                assert float(found[a, b]) >= slopes * (1 - 1e-13)


def test_direct_is_at_most_the_sum_and_at_most_root_two():
    network = chain(dense(3, 5, 8, 8, 4), RELU)
    found = PairwiseLipLT()(network).value
    whole = float(LipLT()(network).value)
    each = torch.stack(
        [LipLT()(network.then(Dense(torch.eye(4, dtype=torch.float64)[i : i + 1]))).value for i in range(4)]
    )
    # Up to the rounding of sums of a few norms.
    assert bool((found <= (each[:, None] + each[None]) * (1 + 1e-10)).all())
    assert float(found.max()) <= math.sqrt(2) * whole * (1 + 1e-10)


def test_many_classes_are_streamed_with_the_same_result(monkeypatch: pytest.MonkeyPatch):
    network = chain(dense(4, 6, 9, 80), RELU)
    many = PairwiseLipLT()(network).value
    monkeypatch.setattr(pairwise, "_FEW", 1000)
    few = PairwiseLipLT()(network).value
    # Inner products instead of differences: the added cancellation is 1e-15 of the squares, so 1e-7 of a distance.
    torch.testing.assert_close(many, few, rtol=1e-7, atol=1e-7)
    assert bool((many >= few * (1 - 1e-12)).all())
    monkeypatch.setattr(pairwise, "_KEPT", 0)
    monkeypatch.setattr(pairwise, "_CHUNK", 100)
    torch.testing.assert_close(PairwiseLipLT()(network).value, few, rtol=1e-12, atol=0)


def test_gradients_reach_the_weights():
    weights = [op.weight.requires_grad_() for op in dense(5, 3, 4, 3)]

    def total(*ws: torch.Tensor) -> torch.Tensor:
        return PairwiseLipLT()(chain([Dense(w) for w in ws], RELU)).value.sum()

    assert torch.autograd.gradcheck(total, weights, fast_mode=True)


def test_outputs_need_one_axis():
    network = chain([*dense(6, 3, 4), Reshape((4,), (2, 2))], RELU)
    with pytest.raises(ShapeError, match="flatten first"):
        PairwiseDAG()(network)


@pytest.mark.parametrize("scale", [1e-60, 1e-120, 1e-162])
def test_small_weights_do_not_vanish_in_squares(scale: float):
    eye = torch.eye(2, dtype=torch.float64)
    network = chain([Dense(eye), Dense(scale * eye)], RELU)
    for method in (PairwiseDAG(), PairwiseLipLT()):
        # The slope of scale (relu(x_1) - relu(x_2)) is scale sqrt(2); the logarithm is within a few roundings of 373.
        assert float(method(network).log_value[0, 1]) >= math.log(scale) + math.log(2) / 2 - 1e-12
