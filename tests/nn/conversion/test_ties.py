"""Weights that layers share are shared by their twins, and the report says so."""

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from support.jacobians import steepest


class Tied(nn.Module):
    """Two layers with one weight, and a third with the bias of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.b.weight = self.a.weight
        self.c.bias = self.a.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


@pytest.mark.parametrize("start", lnn.ConversionStart, ids=str)
def test_shared_parameters_stay_shared_after_training(start: lnn.ConversionStart):
    torch.manual_seed(0)
    model = Tied()
    twin, report = lnn.lipschitzify(model, start=start)
    now = {row.place: row.now for row in report.rows}
    assert "its weight is shared with a" in now["b"]
    assert "its bias is shared with a" in now["c"]
    assert "shared" not in now["a"]
    a, b, c = (twin.body.get_submodule(name) for name in "abc")
    assert len(list(twin.parameters())) == len(list(model.parameters())) == 4
    step = torch.optim.SGD(twin.parameters(), 0.1)
    twin(torch.randn(8, 4)).square().sum().backward()
    step.step()
    assert torch.equal(
        a.get_parameter("parametrizations.weight.original"), b.get_parameter("parametrizations.weight.original")
    )
    weights = [layer.weight for layer in (a, b, c)]
    assert all(isinstance(weight, Tensor) for weight in weights)
    assert torch.equal(*[weight for weight in weights[:2] if isinstance(weight, Tensor)])
    assert a.bias is c.bias
    assert steepest(twin.double().eval(), (1, 4), points=2) <= 1 + 1e-12
    # Loading what was saved keeps the tie.
    twin.load_state_dict(twin.state_dict())
    assert a.get_submodule("parametrizations.weight").original is b.get_submodule("parametrizations.weight").original


def test_ties_that_cannot_be_kept_are_reported():
    model = Tied()
    _, report = lnn.lipschitzify(model, skip=("b",))
    now = {row.place: row.now for row in report.rows}
    assert "its weight is no longer shared with a" in now["b"]
    twin, _ = lnn.lipschitzify(model, skip=("a", "b"))
    assert twin.body.get_submodule("a").weight is twin.body.get_submodule("b").weight


def test_modules_that_are_used_twice_are_converted_once():
    layer = nn.Linear(4, 4)
    twin, report = lnn.lipschitzify(nn.Sequential(layer, nn.ReLU(), layer))
    assert len(report.rows) == 3
    assert len(list(twin.parameters())) == 2
    assert steepest(twin.double().eval(), (1, 4), points=2) <= 1 + 1e-12


def test_an_offset_that_is_added_twice_stays_one_parameter():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x + self.offset) + self.offset

    twin, _ = lnn.lipschitzify(Twice())
    assert len(list(twin.parameters())) == 1
    assert torch.equal(twin(torch.zeros(1, 4)), torch.full((1, 4), 2.0))
