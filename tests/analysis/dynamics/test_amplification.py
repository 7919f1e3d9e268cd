"""How far a unit step can bend a norm, as a profiler records it, against Hessians of dense decompositions."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis.dynamics.stored_history import StoredHistory
from lipkit.analysis.dynamics.tracked_layers import AsOperator
from lipkit.cli.training.profile import ProfileSettings
from lipkit.errors import ArgumentError
from lipkit.linops import materialize
from lipkit.regularizers.linear_layers import layers_of


def profiled(layer: nn.Module, x: Tensor, reading: Any) -> analysis.Profiler:
    """Before the first step and after three of momentum."""
    optimizer = torch.optim.SGD(layer.parameters(), 1e-2, momentum=0.9)
    with analysis.Profiler(layer, optimizer, x[:1], every=2, convolutions=reading) as profile:
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
    return profile


def bends(layer: nn.Module, x: Tensor, reading: Any) -> list[float]:
    """The norms of the Hessians of the dense norm in the weight, by the same steps, by differences."""
    optimizer = torch.optim.SGD(layer.parameters(), 1e-2, momentum=0.9)
    found = [hessian_norm(layer, x, reading)]
    for step in range(3):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
        if step > 0:
            found.append(hessian_norm(layer, x, reading))
    return found


def hessian_norm(layer: Any, x: Tensor, reading: Any) -> float:
    (tracked,) = reading.track(layers_of(layer, x[:1]))
    weight = tracked.weight()

    def norm(step: Tensor) -> Tensor:
        return torch.linalg.svdvals(materialize(tracked.operator(weight + step.reshape(weight.shape))))[0]

    n, h = weight.numel(), 2e-4
    units = h * torch.eye(n, dtype=torch.float64)
    rows = [
        [
            (norm(a + b) - norm(a - b) - norm(b - a) + norm(-a - b)) / (4 * h * h) if i <= j else 0.0
            for j, b in enumerate(units)
        ]
        for i, a in enumerate(units)
    ]
    upper = torch.tensor(rows, dtype=torch.float64)
    return float(torch.linalg.eigvalsh(upper.triu() + upper.triu(1).mT)[-1])


LAYERS = {
    "zero padding": lambda: nn.Conv2d(1, 2, 2, padding=1, bias=False),
    "stride": lambda: nn.Conv2d(2, 1, 3, stride=2, bias=False),
    "groups": lambda: nn.Conv1d(2, 4, 2, groups=2, bias=False),
    "transposed": lambda: nn.ConvTranspose1d(2, 2, 2, bias=False),
    # Its largest value is double for every kernel.
    "circular": lambda: nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular", bias=False),
    "linear": lambda: nn.Linear(4, 3, bias=False),
    "one row": lambda: nn.Linear(4, 1, bias=False),
    "one entry": lambda: nn.Linear(1, 1, bias=False),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("reading", [analysis.AsMatrix(), analysis.AsOperator(amplification=True)])
def test_it_is_the_norm_of_the_hessian_by_differences(name: str, reading: Any):
    shapes = {nn.Linear: lambda m: (m.in_features,), nn.Conv2d: lambda m: (m.in_channels, 5, 5)}
    torch.manual_seed(2)
    layer = LAYERS[name]().double()
    shape = shapes.get(type(layer), lambda m: (m.in_channels, 6))(layer)
    x = torch.randn(4, *shape, dtype=torch.float64)
    (found,) = profiled(layer, x, reading).history.layers
    torch.manual_seed(2)
    layer = LAYERS[name]().double()
    assert found.amplification is not None
    expected = bends(layer, x, reading)
    # Ritz values of residual 1e-3 are at most so much too small; differences are good to h^2 / gap^2, 1e-5 here.
    for one, other in zip(found.amplification.tolist(), expected, strict=True):
        assert one == pytest.approx(other, rel=1.5e-3, abs=1e-6)
    assert (max(expected) > 0.1) == (name != "one entry")


def test_values_that_are_one_have_the_largest_finite_number():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(2 * torch.eye(3))
    for reading in (analysis.AsMatrix(), analysis.AsOperator(amplification=True)):
        optimizer = torch.optim.SGD(layer.parameters(), 0.0)
        with analysis.Profiler(layer, optimizer, torch.zeros(1, 3).double(), convolutions=reading) as profile:
            pass
        (found,) = profile.history.layers
        assert found.amplification is not None
        assert found.amplification.tolist() == [2.0**52 / 2]


def test_an_operator_whose_value_splits_has_the_largest_finite_number():
    # Two channels that are shifts of one signal: a repeated value that other kernels separate.
    layer = nn.Conv1d(2, 2, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2).unsqueeze(2))
    (tracked,) = AsOperator(amplification=True).track(layers_of(layer, torch.zeros(1, 2, 4).double()))
    assert tracked.measure(tracked.weight(), 0).amplification == 2.0**52


def test_nobody_pays_for_it_without_asking():
    layer = nn.Conv1d(1, 2, 3, bias=False).double()
    x = torch.randn(4, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (found,) = profiled(layer, x, analysis.AsOperator()).history.layers
    assert found.amplification is None


def test_it_goes_into_states_and_files():
    torch.manual_seed(0)
    layer = nn.Conv1d(1, 2, 3, bias=False).double()
    x = torch.randn(4, 1, 6, dtype=torch.float64)
    reading = analysis.AsOperator(amplification=True)
    profile = profiled(layer, x, reading)
    (first,) = profile.history.layers
    again = analysis.Profiler(layer, torch.optim.SGD(layer.parameters(), 1e-2), x[:1], every=2, convolutions=reading)
    again.load_state_dict(profile.state_dict())
    (second,) = again.history.layers
    stored = StoredHistory.of(profile.history, 2)
    (third,) = StoredHistory.from_json(stored.to_json(), "it").to_history().layers
    assert first.amplification is not None
    for one in (second, third):
        assert one.amplification is not None
        assert one.amplification.tolist() == first.amplification.tolist()


def test_the_command_line_asks_for_it():
    asked = ProfileSettings(5, "operator", amplification=True)
    assert asked.reading == analysis.AsOperator(amplification=True)
    assert asked.words == ("--profile", "5", "--profile-convolutions", "operator", "--profile-amplification")
    with pytest.raises(ArgumentError, match="a matrix has its amplification anyway"):
        ProfileSettings(5, amplification=True)
