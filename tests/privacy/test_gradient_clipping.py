"""Gradients in the outputs are cut record by record, and a private count moves the limit."""

import math

import pytest
import torch
from torch import nn

import lipkit.nn as lnn
from lipkit import privacy
from lipkit.errors import ArgumentError, ShapeError
from support.record_gradients import drawn_records, gradient_norms


def test_the_values_are_the_same_and_the_gradients_are_cut():
    z = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    clipped = privacy.Fixed(0.8)(z)
    assert torch.equal(clipped, z)
    (found,) = torch.autograd.grad((weights * clipped).sum(), z)
    norms = weights.norm(dim=1)
    torch.testing.assert_close(found, weights * (0.8 / norms).clamp(max=1)[:, None])
    inside = norms <= 0.8
    assert inside.any()
    assert torch.equal(found[inside], weights[inside])


def test_a_gradient_that_is_not_a_number_counts_as_zero():
    z = torch.zeros(2, 3).requires_grad_()
    # The root of a sum of squares has NaN at zero.
    clipped = privacy.Fixed(1.0)(z)
    (found,) = torch.autograd.grad(clipped.square().sum(1).sqrt().sum(), z)
    assert torch.equal(found, torch.zeros(2, 3))


def test_on_isometries_it_is_the_clipping_of_the_whole_gradient():
    # Every tensor's gradient has norm X |g|, so all factors min(1, C / |g|) are those of the whole gradient.
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Linear(6, 6, bias=False), lnn.MaxMin(), lnn.Linear(6, 6, bias=False)).double()
    plain, loss = lnn.condense(model), nn.CrossEntropyLoss()
    x = drawn_records((6,), 1.0, 400)
    x = x[x.norm(dim=1) > 0.9999]
    y = torch.arange(len(x)) % 6
    free = gradient_norms(plain, loss, x, y)
    cut = gradient_norms(plain, loss, x, y, privacy.Fixed(0.9))
    whole = torch.stack(list(free.values())).square().sum(0).sqrt()
    factor = (0.9 * math.sqrt(2) / whole).clamp(max=1)
    assert bool((factor < 1).any())
    assert bool((factor == 1).any())
    for name in free:
        # Weights of norm 1 as stored are shrunk a little: 1e-5 covers that, and records of norm 1 - 1e-6.
        torch.testing.assert_close(cut[name], free[name] * factor, rtol=1e-5, atol=0)


def test_a_count_follows_the_quantile():
    norms = torch.rand(2000, generator=torch.Generator().manual_seed(0)) * 3
    rule = privacy.Quantile(10.0, multiplier=5.0, quantile=0.7)
    for _ in range(200):
        rule = rule.after(rule.count(norms), len(norms))
    assert rule.limit == pytest.approx(2.1, rel=0.03)


def test_one_record_moves_the_count_by_a_half():
    rule = privacy.Quantile(1.0, multiplier=5.0)
    norms = torch.tensor([0.5, 2.0, 1.0])
    for more in (0.1, 7.0):
        moved = rule.count(torch.cat([norms, torch.tensor([more])])) - rule.count(norms)
        assert abs(moved) == rule.sensitivity == 0.5
    assert rule.deviation == 2.5


def test_gradient_and_count_are_one_release():
    rule = privacy.Quantile(1.0, multiplier=5.0)
    assert rule.left(2.0) ** -2 + 5.0**-2 == pytest.approx(2.0**-2)
    with pytest.raises(ArgumentError, match="five times"):
        rule.left(5.0)


def test_bad_numbers_are_refused():
    with pytest.raises(ArgumentError, match="Fixed"):
        privacy.Fixed(0.0)
    with pytest.raises(ArgumentError, match="quantile"):
        privacy.Quantile(1.0, 1.0, quantile=1.0)
    with pytest.raises(ArgumentError, match="planned batch"):
        privacy.Quantile(1.0, 1.0).after(math.nan, 10)
    with pytest.raises(ShapeError, match="batch axis"):
        privacy.Fixed(1.0)(torch.zeros(3))
