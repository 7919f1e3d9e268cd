"""Modules that a conversion skips: they stay, the report says so, and nothing is promised that they could break."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.conversion.conversion_report import ConversionVerdict
from support.jacobians import steepest
from support.unchecked import unchecked


class Gate(nn.Module):
    """A part without a counterpart."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.dense(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.first(x))))


def skipped(report: lnn.ConversionReport) -> list[str]:
    return [row.place for row in report.of(ConversionVerdict.SKIPPED)]


@pytest.mark.parametrize(
    ("skip", "places"),
    [
        (("head",), ["head"]),
        (("blocks",), ["blocks"]),
        (("blocks.*",), ["blocks.0", "blocks.1", "blocks.2"]),
        (("*.2", "first"), ["first", "blocks.2"]),
        ((nn.Linear,), ["first", "blocks.0", "blocks.2", "head"]),
        ((), []),
    ],
    ids=str,
)
def test_names_patterns_and_types_are_skipped(skip: tuple[Any, ...], places: list[str]):
    torch.manual_seed(0)
    model = Model()
    twin, report = lnn.lipschitzify(model, skip=skip)
    assert skipped(report) == places
    for place in places:
        was, now = model.get_submodule(place), twin.body.get_submodule(place)
        assert type(was) is type(now)
        assert all(torch.equal(a, b) for a, b in zip(was.parameters(), now.parameters(), strict=True))
    assert report.promised == (not places)


def test_a_skipped_part_counts_with_its_own_constant():
    """The oracle multiplies singular values: isometries, rectifiers, and a head whose norm is 5."""
    torch.manual_seed(0)
    model = Model()
    nn.init.orthogonal_(model.head.weight, 5.0)
    twin, report = lnn.lipschitzify(model, K=2.0, skip=("head",))
    with pytest.raises(UnsupportedError, match="skipped head"):
        _ = twin.gain
    assert "K is not promised, because of head" in str(report)
    # In float64 weights are computed anew, with more digits: the bound and the Jacobians are of the same ones.
    twin = twin.eval().requires_grad_(False).double()
    found = lipkit.lipschitz(twin, torch.zeros(1, 4).double())
    assert found.kind.certifies
    # Norms are rounded up by some units of float32.
    assert 2 * 5 * (1 - 1e-5) <= float(found.value) <= 2 * 5 * (1 + 1e-5)
    assert steepest(twin, (1, 4)) <= float(found.value) * (1 + 1e-12)


def test_a_skipped_part_of_known_constant_breaks_no_promise():
    torch.manual_seed(0)
    twin, report = lnn.lipschitzify(Model(), skip=("blocks.1",))
    assert skipped(report) == ["blocks.1"]
    assert report.promised
    assert twin.gain == 1.0


def test_parts_that_would_be_refused_can_be_skipped():
    model = nn.Sequential(nn.Linear(4, 4), Gate(), nn.Linear(4, 2))
    with pytest.raises(UnsupportedError, match="a product is Lipschitz only by a number"):
        lnn.lipschitzify(model)
    twin, report = lnn.lipschitzify(model, skip=(Gate,))
    assert skipped(report) == ["1"]
    assert not report.promised
    assert twin(torch.ones(2, 4)).shape == (2, 2)


@pytest.mark.parametrize(
    ("skip", "said"),
    [
        (("tail",), "skip names 'tail', and Model has no such module; its modules are first, blocks, "),
        (("head", "blocks.9*"), "blocks.9"),
        ((nn.Conv2d,), "no such module"),
        ((3,), "no such module"),
        ("head", r"write \('head',\)"),
        (nn.Linear, "sequence of names"),
        ((Model,), "nothing would be converted"),
    ],
    ids=str,
)
def test_entries_that_name_nothing_are_refused_before_anything_runs(skip: Any, said: str):
    class Untraceable(Model):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("the model ran")

    Untraceable.__name__ = "Model"
    with unchecked(), pytest.raises(ArgumentError, match=said):
        lnn.lipschitzify(Untraceable(), skip=skip)


class Joined(nn.Module):
    """Constant 1 as a function of both inputs together, which are sqrt(2) times as long if both follow one x."""

    gain = 1.0

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], 1)


class TwoWays(nn.Module):
    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.first, self.second, self.join = nn.Linear(4, 4), nn.Linear(4, 4), Joined()
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.join(y, y) if self.twice else self.join(y, self.second(x))


@pytest.mark.parametrize("twice", [True, False])
def test_a_gain_of_several_inputs_is_no_gain_of_what_they_are_made_of(twice: bool):
    torch.manual_seed(0)
    twin, report = lnn.lipschitzify(TwoWays(twice), skip=("join",))
    matrix = torch.func.jacrev(twin.double().eval())(torch.zeros(1, 4, dtype=torch.float64)).reshape(8, 4)
    assert torch.linalg.matrix_norm(matrix, 2) > 1.4
    assert not report.promised
    with pytest.raises(UnsupportedError, match="is not promised, because the conversion skipped join"):
        _ = twin.gain
    with pytest.raises(UnsupportedError, match="several tensors that depend on the input"):
        lnn.lipschitzify(TwoWays(twice))


def test_a_module_in_place_of_its_name_is_refused_with_what_to_give():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with unchecked(), pytest.raises(ArgumentError, match="give its name"):
        lnn.lipschitzify(model, skip=[model[0]])  # pyright: ignore[reportArgumentType] - what is refused
