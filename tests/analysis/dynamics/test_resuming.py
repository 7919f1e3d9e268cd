"""A profiler that is interrupted and goes on from its state has the history of one that was not."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.errors import ArgumentError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 1, 8, 8, generator=draws), torch.arange(6) % 3) for _ in range(count)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def assert_same(a: analysis.History, b: analysis.History) -> None:
    """Equal to the bit, in every field."""
    assert (a.label, a.refused) == (b.label, b.refused)
    for name in ("steps", "log_constant", "realised", "expected", "sampled"):
        assert_equal(getattr(a, name), getattr(b, name))
    for one, other in zip(a.layers, b.layers, strict=True):
        assert one.name == other.name
        for name in ("norm", "gap", "drift", "curvature", "decay", "rest", "crossings", "kappa", "diffusion"):
            assert_equal(getattr(one, name), getattr(other, name))


def assert_equal(a: Tensor | None, b: Tensor | None) -> None:
    assert (a is None) == (b is None)
    assert a is None or b is None or torch.equal(a, b)


def through_files(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Tensors by a file of numbers alone, the rest by JSON."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    torch.save(tensors, folder / "tensors.pt")
    words = json.loads(json.dumps({name: value for name, value in state.items() if name not in tensors}))
    return {**torch.load(folder / "tensors.pt", weights_only=True), **words}


SETTINGS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
}


@pytest.mark.parametrize("make", SETTINGS)
@pytest.mark.parametrize("stop", [0, 4, 5, 7])
def test_an_interrupted_run_has_the_same_history(make: str, stop: int, tmp_path: Path):
    data = batches(13)
    model = network()
    optimizer = SETTINGS[make](model.parameters())
    with analysis.Profiler(model, optimizer, data[0][0], every=4) as whole:
        train(model, optimizer, data)

    first = network()
    before = SETTINGS[make](first.parameters())
    with analysis.Profiler(first, before, data[0][0], every=4) as profile:
        train(first, before, data[:stop])
        state = through_files(profile.state_dict(), tmp_path)
        weights = {name: value.clone() for name, value in first.state_dict().items()}
        steps = copy.deepcopy(before.state_dict())
        # What happens to the first run afterwards is not in the state.
        train(first, before, data[:2])

    second = network()
    second.load_state_dict(weights)
    after = SETTINGS[make](second.parameters())
    after.load_state_dict(steps)
    profile = analysis.Profiler(second, after, data[0][0], every=4, seed=5)
    profile.load_state_dict(state)
    assert profile.history.steps.tolist() == [step for step in (0, 4) if step <= stop]
    with profile:
        train(second, after, data[stop:])
    assert_same(profile.history, whole.history)


def test_a_second_block_starts_anew_also_after_a_state():
    model, data = network(), batches(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profile = analysis.Profiler(model, optimizer, data[0][0], every=2)
    with profile:
        train(model, optimizer, data)
        state = profile.state_dict()
    profile.load_state_dict(state)
    with profile:
        pass
    assert profile.history.steps.tolist() == [0, 2, 3]
    with profile:
        pass
    assert profile.history.steps.tolist() == [0]


def test_no_two_tensors_of_a_state_share_memory():
    model, data = network(), batches(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, data[0][0]) as profile:
        train(model, optimizer, data)
        state = profile.state_dict()
    tensors = [value for value in state.values() if isinstance(value, Tensor) and value.numel()]
    # A safetensors file refuses tensors that share memory, and those with gaps.
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in tensors)
    assert all(isinstance(value, Tensor | str) for value in state.values())


def test_states_of_others_are_refused():
    model, data = network(), batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profile = analysis.Profiler(model, optimizer, data[0][0], every=4)
    with pytest.raises(ArgumentError, match="no history yet"):
        profile.state_dict()
    with profile:
        state = profile.state_dict()
        with pytest.raises(ArgumentError, match="before you enter"):
            profile.load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"every=4.*every=3"):
        analysis.Profiler(model, optimizer, data[0][0], every=3).load_state_dict(state)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    own = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match=r"\['0', '3'\].*\['1'\]"):
        analysis.Profiler(other, own, data[0][0], every=4).load_state_dict(state)
    del state["layers.1.weight"]
    with pytest.raises(ArgumentError, match=r"no tensor 'layers.1.weight'"):
        analysis.Profiler(model, optimizer, data[0][0], every=4).load_state_dict(state)
