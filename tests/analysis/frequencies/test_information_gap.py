"""Information before and after a change: tables by hand, filters of networks, and a case that meets its bound."""

import math

import pytest
import torch
from torch import nn

import lipkit
from lipkit import analysis
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, KindError, MetricError, NonFiniteError, ShapeError
from lipkit.regions import Metric
from support.unchecked import unchecked


def test_information_is_that_of_the_table():
    logits = torch.tensor([[0.0, math.log(3.0)], [math.log(4.0), 0.0], [0.0, 0.0]], dtype=torch.float64)
    changed = torch.zeros(3, 2, dtype=torch.float64)
    found = analysis.information_gap(nn.Identity(), logits, changed, torch.tensor([1, 0, 0]))
    # Q of the labels is 3/4, 4/5, 1/2, then 1/2; P is 2/3 and 1/3.
    prior = math.log(1 / 3) + 2 * math.log(2 / 3)
    assert found.before == pytest.approx((math.log(0.75 * 0.8 * 0.5) - prior) / 3)
    assert found.after == pytest.approx((3 * math.log(0.5) - prior) / 3)
    assert found.change == pytest.approx((math.log(1.5) + math.log(1.6)) / 3)
    assert found.gap == pytest.approx(found.change)  # all change in one direction
    deviation = torch.tensor([math.log(1.5), math.log(1.6), 0.0]).std()
    assert found.standard_error == pytest.approx(float(deviation) / math.sqrt(3), rel=1e-6)
    given = analysis.information_gap(
        nn.Identity(), logits, changed, torch.tensor([1, 0, 0]), torch.tensor([0.5, 0.5]), 2
    )
    assert given.before == pytest.approx(found.before + prior / 3 + math.log(2))
    assert given.gap == pytest.approx(found.gap)


@pytest.mark.parametrize("seed", range(2))
def test_filters_keep_both_inequalities(seed: int):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 6)).train()
    x, y = torch.randn(50, 3, 8, 8), torch.randint(6, (50,))
    constant = lipkit.lipschitz(model.eval(), x[:1])
    model.train()
    for changed in (analysis.low_pass(x, 0.5), analysis.high_pass(x, 0.2), x + 0.01):
        found = analysis.information_gap(model, x, changed, y, batch=7)
        assert 0 < found.gap <= found.change <= found.upper_bound(constant)
    assert model.training


def test_the_root_of_two_is_needed():
    # Two classes of which the wrong one is sure: log Q falls by d per half of each logit's opposite move.
    direction = torch.tensor([1.0, -1.0], dtype=torch.float64)
    x = torch.stack([-30 * direction, -40 * direction])
    found = analysis.information_gap(nn.Identity(), x, x - 0.01 * direction, torch.tensor([0, 0]))
    bound = found.upper_bound(Bound.from_value(1.0, Kind.UPPER, "identity"))
    # e^-60 of the slope is missing, and rounding.
    assert found.change <= bound <= found.change * (1 + 1e-12)
    assert found.change == pytest.approx(0.02, rel=1e-12)


def test_nothing_bounds_the_gap_from_below():
    """log Q(1 | x) = exp(-|x - c|^2) / 2 - log 2 is the same at two images that differ by the higher frequency."""

    class Bump(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            centre = torch.tensor([0.75, 0.25], dtype=torch.float64)
            likely = torch.exp(-(x[:, 0, 0] - centre).square().sum(1)) / 2 - math.log(2)
            return torch.stack([torch.log1p(-likely.exp()), likely], 1)

    x = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(2, 1, 1, 2)
    changed = torch.full_like(x, 0.5)  # the mean of each image
    found = analysis.information_gap(Bump(), x, changed, torch.tensor([1, 1]))
    assert found.change == pytest.approx(0, abs=1e-15)
    moved = float(found.distances[0])
    assert moved == pytest.approx(math.sqrt(0.5), rel=1e-12)
    # Off zero the transform of the logarithm is that of the Gaussian, halved.
    transform = math.pi / 2 * math.exp(-((math.pi * 0.4) ** 2))
    assert 2 * math.pi * moved * 0.4 * transform == pytest.approx(0.5755, abs=1e-4)


def test_bad_input_is_refused():
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    identity = nn.Identity()
    with unchecked(), pytest.raises(ShapeError, match="belong together"):
        analysis.information_gap(identity, x, x[:2], y)
    with pytest.raises(ArgumentError, match="two images"):
        analysis.information_gap(identity, x[:1], x[:1], y[:1])
    with pytest.raises(ArgumentError, match=r"0\.\.2"):
        analysis.information_gap(identity, x, x, y + 1)
    with pytest.raises(ArgumentError, match="distribution"):
        analysis.information_gap(identity, x, x, y, torch.tensor([0.5, 0.5, 0.5]))
    with pytest.raises(ArgumentError, match="no probability"):
        analysis.information_gap(identity, x, x, y, torch.tensor([0.5, 0.5, 0.0]))
    with pytest.raises(NonFiniteError):
        analysis.information_gap(identity, x * math.nan, x, y)
    found = analysis.information_gap(identity, x, 2 * x, y)
    with pytest.raises(KindError):
        found.upper_bound(Bound.from_value(1.0, Kind.ESTIMATE, "guess"))
    with pytest.raises(MetricError):
        found.upper_bound(Bound.from_value(1.0, Kind.UPPER, "other", Metric(math.inf, math.inf)))
