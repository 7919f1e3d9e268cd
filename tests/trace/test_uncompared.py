"""Models that cannot be run with other values: their graph is compared instead, and a certificate says so."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit.bounds import DAG
from lipkit.errors import ArgumentError, CaptureError
from lipkit.trace import rules
from lipkit.trace.capture import capture
from lipkit.trace.network import Builder, Ref
from lipkit.trace.nodes import Pointwise
from lipkit.trace.nodes.pointwise import leaky_relu
from support.networks.short_models import linear, model, vector

RELU = torch.ops.aten.relu.default


def wrong(b: Builder, x: Ref) -> Ref:
    """x / 100 for x < 0."""
    return b.node(Pointwise(leaky_relu(0.01), x.shape), x)


def twins(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = self.a(x)
    return y, y + 1


def behind(self: Any, x: Tensor) -> Tensor:
    return self.b(self.pair(x)[0]).relu()


def exported_only(self: Any, x: Tensor) -> Tensor:
    if not torch.compiler.is_exporting():
        raise RuntimeError("there is no kernel for this device")
    return self.a(x).relu()


CASES: list[tuple[Callable[[], nn.Module], Tensor, str | None, str]] = [
    (
        lambda: model(behind, pair=model(twins, a=linear()), b=linear()),
        vector(),
        "pair",
        r"compared with the exported graph.*module 'pair' is not one tensor",
    ),
    (
        lambda: model(exported_only, a=linear()),
        vector(),
        None,
        r"compared with the exported graph.*there is no kernel for this device",
    ),
    # Runs once its example has the type of its weights.
    (lambda: nn.Sequential(linear(), nn.ReLU()).double(), vector().float(), None, ""),
    (lambda: nn.Sequential(linear(), nn.ReLU()), vector().float(), None, ""),
]


@pytest.mark.parametrize(("make", "x", "wrt", "note"), CASES)
def test_a_wrong_rule_is_noticed(
    make: Callable[[], nn.Module], x: Tensor, wrt: str | None, note: str, monkeypatch: pytest.MonkeyPatch
):
    found = capture(make(), x, wrt=wrt)
    assert re.search(note, found.unchecked) if note else not found.unchecked
    scope = lipkit.certificate(make(), x, DAG(), wrt=wrt).scope
    assert found.unchecked in scope
    assert ("compared" in scope) == bool(note)
    monkeypatch.setitem(rules.RULES, RELU, [rules.Rule(RELU, wrong, list)])
    with pytest.raises(CaptureError, match="does not compute what the model computes"):
        capture(make(), x, wrt=wrt)


def test_a_model_without_finite_answers_is_compared_with_nothing_and_says_so():
    part = linear()
    nn.init.constant_(part.bias, math.inf)
    network = capture(nn.Sequential(part, nn.ReLU()), vector().float())
    assert "was not compared with the running model, because its answer is NaN or infinite" in network.unchecked


@pytest.mark.parametrize("entry", [math.nan, math.inf])
def test_an_example_that_is_not_finite_is_refused(entry: float):
    with pytest.raises(ArgumentError, match="NaN or infinite entries"):
        capture(nn.ReLU(), torch.full((1, 3), entry))


def test_a_mask_of_infinite_numbers_may_be_a_constant():
    masked = model(lambda self, x, mask: (self.a(x) + mask).softmax(-1), a=linear())
    mask = torch.zeros(1, 6, dtype=torch.float64)
    mask[0, 0] = -math.inf
    assert not capture(masked, vector(), mask, wrt="x_0").unchecked
