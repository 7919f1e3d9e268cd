"""Weights inside the files of trainings: found where they are, and refused where they are not clear."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipkit.cli.inputs import load
from lipkit.errors import ArgumentError


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def prefixed(prefix: str) -> dict[str, Any]:
    return {prefix + name: value for name, value in net(1).state_dict().items()}


STATE = net(1).state_dict()
FITTING = {
    "plain": (STATE, ""),
    "nested": ({"model": {"state_dict": STATE}, "epoch": 3}, "under model / state_dict"),
    "state_dict": ({"state_dict": STATE, "optimizer": {"state": {0: {"step": 1}}}}, "under state_dict"),
    "DataParallel": (prefixed("module."), "at the top, whose names begin with 'module.'"),
    "Lightning": (
        {"state_dict": {**prefixed("model."), "loss.weight": torch.ones(2)}, "lr": 0.1, "callbacks": {}},
        "under state_dict, whose names begin with 'model.'; 1 other tensors there are left out",
    ),
    "compiled": ({"model": OrderedDict(prefixed("_orig_mod.module."))}, "begin with '_orig_mod.module.'"),
}


@pytest.mark.parametrize("name", FITTING)
def test_weights_are_found_and_it_is_said_where(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    content, said = FITTING[name]
    torch.save(content, tmp_path / "w.pt")
    model = net(0)
    load.weights(model, tmp_path / "w.pt")
    for key, value in model.state_dict().items():
        assert torch.equal(value, STATE[key])
    told = capsys.readouterr().err
    assert (said in told) if said else not told


REFUSED = {
    "twice": ({"model": STATE, "ema": STATE}, "more than once: under model; under ema"),
    "none": ({"epoch": 3, "lr": 0.1}, "holds no state_dict.* the keys epoch, lr"),
    "other": (
        {"state_dict": {"0.weight": torch.zeros(4, 3)}},
        "under state_dict. does not fit the model: it lacks 0.bias, 2.weight, 2.bias; save",
    ),
    "more": ({**STATE, "extra": torch.zeros(1)}, "does not fit the model: the model has no extra; save"),
    "half": ({**prefixed("module."), "module.extra": torch.zeros(1)}, "the model has no module.0.weight"),
    "shape": ({"state_dict": {**STATE, "0.bias": torch.zeros(5)}}, r"holds \(5,\) for 0.bias, which has shape \(4,\)"),
    "list": ([1, 2], "holds a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_clear_is_refused_with_its_keys(name: str, tmp_path: Path):
    content, said = REFUSED[name]
    torch.save(content, tmp_path / "w.pt")
    model, before = net(0), net(0).state_dict()
    with pytest.raises(ArgumentError, match=said):
        load.weights(model, tmp_path / "w.pt")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_counters_of_batches_may_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, state = nn.BatchNorm1d(3), nn.BatchNorm1d(3).state_dict()
    del state["num_batches_tracked"]
    state["running_mean"] = torch.ones(3)
    # Without the numbers of versions that torch stores, as in safetensors, and with them.
    for content in (state, dict(state), {"module." + name: value for name, value in state.items()}):
        model.reset_running_stats()
        torch.save(content, tmp_path / "w.pt")
        load.weights(model, tmp_path / "w.pt")
        assert torch.equal(model.get_buffer("running_mean"), torch.ones(3))
        assert "without num_batches_tracked, which only training reads" in capsys.readouterr().err
    del state["running_var"]
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ArgumentError, match="it lacks running_var; save"):
        load.weights(model, tmp_path / "w.pt")
