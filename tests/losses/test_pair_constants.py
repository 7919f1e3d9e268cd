"""Constants of pairs of logits: the right factor for every norm, never rounded below, differentiable."""

import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.errors import ArgumentError, MetricError, NonFiniteError, ShapeError
from lipkit.losses.pair_constants import label_constants, log_pair_factor, pair_constants

values = st.floats(1e-200, 1e200)


def exact(number: float) -> Any:
    return mpmath.mpf(number)


@pytest.mark.parametrize(("p_out", "factor"), [(1.0, 1.0), (2.0, math.sqrt(2)), (math.inf, 2.0)])
@given(value=values)
def test_the_whole_map_gets_the_factor_of_its_output_norm(p_out: float, factor: float, value: float):
    bound = Bound.from_value(value, Kind.UPPER, "given", Metric(2.0, p_out))
    found = pair_constants(bound, 3)
    off = ~torch.eye(3, dtype=torch.bool)
    assert bool((found[~off] == 0).all())
    with mpmath.workdps(50):
        true = exact(value) * mpmath.mpf(2) ** (1 - (0 if p_out == math.inf else 1 / exact(p_out)))
        assert all(exact(one) >= true for one in found[off].tolist())
    # A logarithm near 460 is rounded by 1e-13 a few times.
    torch.testing.assert_close(found[off], torch.full((6,), factor * value, dtype=torch.float64), rtol=2e-12, atol=0)


@given(q=st.floats(1.0, 64.0))
def test_the_factor_is_the_dual_norm_of_a_difference_of_unit_vectors(q: float):
    with mpmath.workdps(50):
        true = (1 - 1 / exact(q)) * mpmath.log(2)
        assert 0 <= exact(log_pair_factor(q)) - true <= mpmath.mpf(2) ** -50


@pytest.mark.parametrize("p_out", [1.0, 2.0, math.inf])
def test_two_opposite_logits_flip_exactly_at_the_radius(p_out: float):
    # f(t) = (t, -t) has constant 2^(1/q) into l_q and flips at distance t = margin / K_ab: a smaller K_ab is unsound.
    own = Bound.from_value(2.0 ** (0.0 if p_out == math.inf else 1 / p_out), Kind.EXACT, "f", Metric(2.0, p_out))
    t = 0.75
    radius = 2 * t / pair_constants(own, 2)[0, 1].item()
    # Two units in the last place below, never above.
    assert t * (1 - 1e-14) <= radius <= t


def test_the_printed_factors_are_unsound():
    # Printed: 1 for outputs in linf, 2 for l1. f(t) = (t, -t) has constant 1 into linf, and at t = 1 a margin of 2:
    # the printed radius is 2 / 1, and the class has changed at distance 1.
    linf = Bound.from_value(1.0, Kind.EXACT, "f", Metric(2.0, math.inf))
    ours = 2.0 / pair_constants(linf, 2)[0, 1].item()
    flips_at, printed = 1.0, 2.0 / 1.0
    assert printed > flips_at >= ours > flips_at * (1 - 1e-14)


@given(st.lists(values, min_size=2, max_size=5))
def test_classes_add(rows: list[float]):
    bound = Bound.from_value(torch.tensor(rows, dtype=torch.float64), Kind.UPPER, "given", of=Scope.CLASS)
    found = pair_constants(bound, len(rows))
    with mpmath.workdps(50):
        for a, first in enumerate(rows):
            for b, second in enumerate(rows):
                true = exact(first) + exact(second) if a != b else mpmath.mpf(0)
                assert true <= exact(found[a, b].item()) <= true * (1 + mpmath.mpf("2e-12"))


def test_unit_rows_get_the_factor_two():
    bound = Bound.from_value(torch.ones(4, dtype=torch.float64), Kind.EXACT, "unit rows", of=Scope.CLASS)
    off = pair_constants(bound, 4)[~torch.eye(4, dtype=torch.bool)]
    assert bool((off >= 2.0).all())
    assert bool((off <= 2.0 + 1e-14).all())


def test_pairs_are_taken_as_they_are_up_to_the_diagonal():
    pairs = torch.rand(4, 4, dtype=torch.float64)
    found = pair_constants(Bound.from_value(pairs, Kind.UPPER, "given", of=Scope.PAIR), 4)
    assert bool((found.diagonal() == 0).all())
    off = ~torch.eye(4, dtype=torch.bool)
    assert bool((found[off] >= pairs[off]).all())
    torch.testing.assert_close(found[off], pairs[off], rtol=1e-14, atol=0)


@pytest.mark.parametrize("of", [Scope.WHOLE, Scope.CLASS, Scope.PAIR])
def test_gradients_reach_the_bound(of: Scope):
    weights = torch.rand((3,) * of.axes, dtype=torch.float64) + 0.5
    labels = torch.tensor([0, 2, 2, 1])

    def rows(w: Tensor) -> Tensor:
        return label_constants(Bound.from_value(w.square(), Kind.UPPER, "w", of=of), labels, 3)

    assert torch.autograd.gradcheck(rows, weights.requires_grad_())


@pytest.mark.parametrize("of", [Scope.WHOLE, Scope.CLASS, Scope.PAIR])
def test_constants_of_zero_have_gradients(of: Scope):
    weights = torch.zeros((3,) * of.axes, dtype=torch.float64, requires_grad=True)
    found = pair_constants(Bound.from_value(weights, Kind.UPPER, "w", of=of), 3)
    assert bool((found == 0).all())
    (gradient,) = torch.autograd.grad(found.sum(), weights)
    assert bool(torch.isfinite(gradient).all())


def test_local_constants_count_for_their_sample():
    local = Bound.from_value(torch.tensor([1.0, 3.0], dtype=torch.float64), Kind.UPPER, "local", of=Scope.SAMPLE)
    found = label_constants(local, torch.tensor([1, 0]), 3)
    root = math.sqrt(2)
    expected = torch.tensor([[root, 0, root], [0, 3 * root, 3 * root]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    with pytest.raises(ShapeError, match="each sample"):
        pair_constants(local, 3)
    with pytest.raises(ShapeError, match=r"must have shape \(3,\) here"):
        label_constants(local, torch.tensor([1, 0, 2]), 3)


def test_what_does_not_fit_is_refused():
    classes = Bound.from_value(torch.ones(3, dtype=torch.float64), Kind.UPPER, "given", of=Scope.CLASS)
    with pytest.raises(ShapeError, match=r"must have shape \(4,\) here, got \(3,\)"):
        pair_constants(classes, 4)
    with pytest.raises(ShapeError, match=r"shape \(4, 4\)"):
        label_constants(torch.ones(3, 3), torch.tensor([0]), 4)
    with pytest.raises(MetricError, match="exponent >= 1"):
        pair_constants(Bound.from_value(1.0, Kind.UPPER, "half", Metric(2.0, 0.5)), 3)
    with pytest.raises(ArgumentError, match="at least 1"):
        pair_constants(Bound.from_value(1.0, Kind.UPPER, "one"), 0)
    huge = Bound(torch.tensor(1000.0, dtype=torch.float64), Kind.UPPER, "huge")
    assert pair_constants(huge, 2)[0, 1] == math.inf
    with pytest.raises(NonFiniteError, match="leave float64"):
        label_constants(huge, torch.tensor([0]), 2)
