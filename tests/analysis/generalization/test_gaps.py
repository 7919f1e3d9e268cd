"""Measured gaps: tables by hand, and the mean over trainings of a model whose gap is known."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.data import Examples
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def squares(output: Tensor, labels: Tensor) -> Tensor:
    return (output[:, 0] - labels).square()


def examples(values: list[float], labels: list[int]) -> Examples:
    return Examples(torch.tensor(values)[:, None], torch.tensor(labels), tuple("abc"))


def test_the_gap_is_that_of_the_table():
    model = nn.Identity()
    train, test = examples([0.0, 1.0, 2.0], [0, 1, 1]), examples([0.0, 2.0], [2, 2])
    found = analysis.generalization_gap(model, train, test, squares, batch=2)
    # Losses 0, 0, 1 and 4, 0: means 1/3 and 2, and the deviation of 4, 0 is 8^(1/2).
    assert found == pytest.approx((1 / 3, 2.0, 2.0))
    assert found.value == pytest.approx(5 / 3)
    assert analysis.generalization_gap(model, test, train, squares).value == pytest.approx(5 / 3)


def test_the_printed_population_risk_leaves_no_gap():
    """A model that knows the samples it saw, by heart, and says 0 otherwise; labels are as often 0 as 1."""

    class Memory(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x < 10, x, 0.0)

    seen, unseen = examples([0.0, 1.0], [0, 1]), examples([10.0, 11.0, 12.0, 13.0], [0, 1, 0, 1])
    found = analysis.generalization_gap(Memory(), seen, unseen, lambda output, y: (output[:, 0] != y).double())
    assert (found.train, found.test, found.value) == (0, 0.5, 0.5)
    # The printed risk is the mean over the samples that were seen.
    assert analysis.generalization_gap(Memory(), seen, seen, squares).value == 0


def test_the_expected_gap_of_a_mean_is_known():
    """A constant fitted to m draws by squares has the gap 2 Var / m: Var (1 - 1/m) here, Var (1 + 1/m) there."""
    source, gaps, m = torch.Generator().manual_seed(0), [], 5
    for _ in range(1000):
        draws = torch.rand(m + 20, generator=source)
        model = nn.Linear(1, 1)
        nn.init.constant_(model.weight, -1.0)
        model.bias.data.fill_(float(draws[:m].mean()))
        sets = [Examples(x[:, None], torch.zeros(len(x), dtype=torch.int64), ("a",)) for x in draws.split([m, 20])]
        found = analysis.generalization_gap(model, sets[0], sets[1], squares)
        gaps.append(found.test - found.train)
    gap = torch.tensor(gaps)
    # Var of the uniform law is 1/12; four standard errors of the mean over trainings.
    assert float(gap.mean()) == pytest.approx(2 / 12 / m, abs=4 * float(gap.std()) / math.sqrt(1000))
    assert float(gap.mean()) > 10 * float(gap.std()) / math.sqrt(1000)


def test_the_model_is_evaluated_and_left_as_it_was():
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(1, 1)).train()
    data = examples([0.5, 1.0, 2.0], [0, 1, 2])
    found = analysis.generalization_gap(model, data, data, squares)
    assert found.value == 0
    assert model.training
    assert model[0].training


def test_bad_input_is_refused():
    data = examples([0.5, 1.0, 2.0], [0, 1, 2])
    with pytest.raises(ArgumentError, match="two to test"):
        analysis.generalization_gap(nn.Identity(), data, examples([1.0], [0]), squares)
    with pytest.raises(ShapeError, match="reduction"):
        analysis.generalization_gap(nn.Identity(), data, data, lambda output, labels: squares(output, labels).mean())
    with pytest.raises(NonFiniteError, match="losses"):
        analysis.generalization_gap(nn.Identity(), data, data, lambda output, labels: squares(output, labels) / 0)
