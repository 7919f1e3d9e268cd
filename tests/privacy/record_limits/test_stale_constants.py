"""Numbers that a model computes from its weights behind autograd's back: limits of earlier weights are too small."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lipkit.nn as lnn
from lipkit import privacy
from support.record_gradients import drawn_records, gradient_norms, largest_ratios

INPUTS = privacy.Inputs((20,), 1.0)


class Rescaled(nn.Module):
    """A weight over its own norm, which is a constant for autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 20))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight) / self.weight.detach().norm()


class Twice(Rescaled):
    """A weight plus itself, detached: that is the same memory, so it follows."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight) + functional.linear(x, self.weight.detach())


class Plain(Rescaled):
    """A number of the model that is no parameter, and does not move."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight) / 2 + torch.linspace(0, 1, 20)


def made(part: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 20), part(), nn.ReLU(), nn.Linear(20, 3))


@pytest.mark.parametrize(("part", "follows"), [(Rescaled, False), (Twice, True), (Plain, True)])
def test_a_network_with_numbers_of_earlier_weights_does_not_follow(part: type[nn.Module], follows: bool):
    plain = lnn.condense(made(part))
    before = [p.detach().clone() for p in plain.parameters()]
    known = privacy.Sensitivity(plain, INPUTS)
    assert known.follows == follows
    assert all(torch.equal(p, old) for p, old in zip(plain.parameters(), before, strict=True))


def test_limits_of_a_training_are_those_of_its_present_weights(tmp_path: Path):
    model, loss, x = made(Rescaled), nn.CrossEntropyLoss(), drawn_records((20,), 1.0, 60, torch.float32)
    plan = privacy.Plan(60, 60, 5, 1e-3, sigma=1.0, accountant=privacy.Gaussian(), sampling=privacy.Whole())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    y = torch.zeros(60, dtype=torch.int64)
    with privacy.Training(model, loss, optimizer, (x, y), plan, INPUTS, ledger=tmp_path / "ledger") as training:
        training.step()
        with torch.no_grad():
            model.get_parameter("1.weight").mul_(0.01)
        training.step()
        limits = training._limits()
    # The weight shrank, so its gradient grew a hundredfold: stale limits would be as many times too small.
    found = largest_ratios(limits, gradient_norms(model, loss, x, y))
    assert 0.01 < found["1.weight"] <= 1
    assert max(found.values()) <= 1
