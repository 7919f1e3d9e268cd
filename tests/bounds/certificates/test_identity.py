"""Descriptions of objects: the same for the same, another for whatever computes otherwise."""

import functools
import importlib.util
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipkit import Bound, Kind
from lipkit import nn as lnn
from lipkit.bounds.certificates.identity import contents, model_contents, network_hash, row_hashes
from lipkit.bounds.lipschitz import network_of
from lipkit.certify.attacks import PGD, Constant, Foolbox, Halving, TorchAttacks
from lipkit.errors import ArgumentError
from lipkit.nn.core.freeze import frozen
from support.layers.examples import LAYERS
from support.programs.run import environment

FACTOR = 2.0


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR


def outer(x: Tensor) -> Tensor:
    return scaled(x) + 1


def multiplied(by: float) -> Any:
    return lambda x: x * by


class Shift(nn.Module):
    def __init__(self, by: Any) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x - self.by


class Slots:
    __slots__ = ("by",)

    def __init__(self, by: float) -> None:
        self.by = by


class Lazy:
    def __init__(self, by: float) -> None:
        self.by = by

    @functools.cached_property
    def twice(self) -> float:
        return 2 * self.by


@dataclass(frozen=True)
class Counted:
    by: float
    seen: int = field(default=0, compare=False)


class Foreign:
    """As attacks of other packages are: plain attributes."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, *_: Any, **__: Any) -> None: ...


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1.0 + 2.0**-52), (1, 1.0), (True, 1), ("1", 1), (None, 0), (torch.float32, torch.float64),
        (Kind.UPPER, Kind.EXACT), ((1, 2), (2, 1)), ({1: 2}, {1: 3}), ({1, 2}, {1, 3}),
        (torch.zeros(2), torch.zeros(2, 1)), (torch.zeros(2), torch.zeros(2).double()), (torch.ones(2), torch.zeros(2)),
        (np.zeros(2), np.ones(2)), (multiplied(1.0), multiplied(2.0)), (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1), (lambda x, a=1: x + a, lambda x, a=2: x + a),
        (lambda x: [x + 1 for _ in x], lambda x: [x + 2 for _ in x]), (torch.relu, torch.tanh), (scaled, outer),
        (functools.partial(torch.add, 1), functools.partial(torch.add, 2)), (Shift(0.0), Shift(5.0)),
        (Shift(torch.zeros(1)), Shift(torch.ones(1))), (Shift([1, {"a": 2}]), Shift([1, {"a": 3}])),
        (Shift((nn.Linear(2, 2),)), Shift((nn.Linear(2, 2),))), (Shift(0.0).forward, Shift(1.0).forward),
        (Slots(1.0), Slots(2.0)), (Lazy(1.0), Lazy(2.0)), (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())),
        (nn.Sequential(Shift(0.0)), nn.Sequential(Shift(1.0))), (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (PGD(0.5, schedule=Halving(start=1e-6)), PGD(0.5)), (PGD(0.5, schedule=Constant()), PGD(0.5)),
        (
            Foolbox(1.0, low=0, high=1, attack=Foreign(3)),
            Foolbox(1.0, low=0, high=1, attack=Foreign(4)),
        ),
        (
            TorchAttacks(1.0, low=0, high=1, build=lambda *_: Foreign(3)),
            TorchAttacks(1.0, low=0, high=1, build=lambda *_: Foreign(4)),
        ),
        (Bound.from_value(1.0, Kind.UPPER, "a"), Bound.from_value(1.5, Kind.UPPER, "a")),
    ],
)  # fmt: skip
def test_what_differs_is_told_apart(one: object, other: object) -> None:
    assert contents(one) == contents(one)
    assert contents(one) != contents(other)


def test_names_that_a_function_uses_belong_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(outer)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    # It stands in a function that this one calls.
    assert contents(outer) != before


def _made(folder: Path, body: str) -> nn.Module:
    """A model of a class that is in a file of its own, as it is after an edit."""
    file = folder / f"made_{abs(hash(body))}.py"
    file.write_text(
        f"from torch import nn\n\nSHIFT = 1.0\n\n\nclass Made(nn.Module):\n    def forward(self, x):\n        {body}\n"
    )
    spec = importlib.util.spec_from_file_location("made_for_a_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["made_for_a_test"] = module
    spec.loader.exec_module(module)
    return module.Made()


def test_the_source_of_a_class_belongs_to_a_model_whose_network_is_not_known(tmp_path: Path) -> None:
    first = model_contents(_made(tmp_path, "return x + SHIFT"), code=True)["code"]
    assert model_contents(_made(tmp_path, "return x + SHIFT"), code=True)["code"] == first
    assert model_contents(_made(tmp_path, "return x - SHIFT"), code=True)["code"] != first
    model = _made(tmp_path, "return x + SHIFT")
    sys.modules["made_for_a_test"].__dict__["SHIFT"] = 2.0
    assert model_contents(model, code=True)["code"] != first
    assert model_contents(model, code=False)["code"] == {}


def test_the_network_tells_what_the_source_of_a_class_does(tmp_path: Path) -> None:
    def found(body: str) -> str:
        return network_hash(network_of(_made(tmp_path, body), torch.zeros(1, 3)))

    first = found("return x + SHIFT")
    assert found("return x + SHIFT  # the same") == first
    assert len({first, found("return x - SHIFT"), found("return x + 2 * SHIFT"), found("return 2 * x + SHIFT")}) == 4


def test_a_function_without_source_is_refused() -> None:
    space: dict[str, Any] = {"__name__": "somewhere"}
    exec("def scaled(x):\n    return 2 * x", space)
    with pytest.raises(ArgumentError, match=r"somewhere\.scaled has no source file"):
        contents(space["scaled"])


def test_the_file_of_a_class_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)), torch.zeros(1, 3))
    before = row_hashes(network)
    for cls in {type(op) for op in network.blocks.values()} | {type(node) for node in network.nodes}:
        top = ".".join(cls.__module__.split(".")[:2])
        monkeypatch.setattr(cls, "__module__", f"{top}.elsewhere")
    assert row_hashes(network) == before


def test_held_and_traced_weights_give_one_structure() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(lnn.SLLConv(3, 3, 4, steps=2), nn.Flatten(), lnn.Linear(48, 8), nn.ReLU())
    x = torch.randn(1, 3, 4, 4)
    traced = row_hashes(network_of(model, x))
    with torch.no_grad():
        assert row_hashes(network_of(model, x)) == traced
    # Operations of a module that states its constant count, by what they do.
    other = nn.Sequential(lnn.SLLConv(3, 3, 4, steps=2, activation=nn.Tanh()), *list(model.children())[1:])
    assert row_hashes(network_of(other, x)) != traced


def test_copies_and_caches_are_told_alike() -> None:
    lazy = Lazy(1.0)
    fresh = contents(lazy)
    assert lazy.twice == 2.0
    assert contents(lazy) == fresh
    assert contents(replace(Counted(1.0), seen=4)) == contents(Counted(1.0))
    shared = (1.5, 2.5)
    assert contents([shared, shared]) == contents([(1.5, 2.5), (1.0 + 0.5, 2.5)])
    cell = Shift(0.0)
    cell.by = (cell, [cell])
    assert contents(cell) == contents(cell)


@pytest.mark.parametrize("name", LAYERS)
def test_use_does_not_change_what_a_layer_is_told_by(name: str) -> None:
    torch.manual_seed(0)
    model, shape = LAYERS[name]()
    model.eval()
    x = torch.randn(2, *shape, requires_grad=True)
    before = model_contents(model, code=True)
    model(x).sum().backward()
    with frozen(model), torch.no_grad():
        model(x)
        assert model_contents(model, code=True) == before
    assert model_contents(model, code=True) == before


def test_plain_parametrizations_are_told() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4), dim=0)
    other = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4), dim=1)
    # They refuse to be saved; what they hold is told all the same.
    assert model_contents(layer, code=True)["attributes"]["in_features"] == "6"
    assert model_contents(layer, code=True)["attributes"] != model_contents(other, code=True)["attributes"]


@pytest.mark.process
def test_another_process_tells_the_same() -> None:
    objects = "(t.outer, t.Shift(3.0), t.PGD(0.5), {'b', 'a'}, t.multiplied(2.0))"
    code = f"import test_identity as t; print(t.contents({objects}))"
    here = Path(__file__).parent
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here,
            env=environment(PYTHONHASHSEED=seed),
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1
