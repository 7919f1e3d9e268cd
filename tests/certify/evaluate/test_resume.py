"""Stored results are used again for what they are of, and for nothing else."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lipkit
from lipkit import Ball, Bound, bounds
from lipkit import nn as lnn
from lipkit.certify import Logits, accuracy, head_pairwise
from lipkit.certify.attacks import PGD, Attack, Halving, Neighbourhood
from lipkit.certify.attacks.attacked_model import Victim
from lipkit.errors import RecordError
from support.sealed_files import read_lines, write_lines

SCALE = 1.0


class Shifted(nn.Module):
    """A linear classifier of inputs, shifted by a plain number; from `late` on only where the first entry is large."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.shift = 0.0
        self.late = late

    def forward(self, x: Tensor) -> Tensor:
        moved = x - self.shift
        return self.linear(torch.where(x[:, :1] > 0, moved, x) if self.late else moved)


class Scaled(nn.Module):
    """A linear classifier with a number that stands outside of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return _scaled(self.linear(x))


def _scaled(z: Tensor) -> Tensor:
    return z * torch.full((), SCALE)


def exact(model: nn.Module) -> Callable[[Tensor], Logits]:
    def found(x: Tensor) -> Logits:
        with torch.no_grad():
            z = model(x).double()
        return Logits(z, torch.full((len(z),), 1e-6, dtype=torch.float64))

    return found


def inputs(count: int = 50) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(1))


def pairs(model: nn.Module) -> Bound:
    return head_pairwise(model, inputs()[:1])


@pytest.mark.parametrize("given", [False, True])
def test_a_plain_number_of_the_model_counts(given: bool, tmp_path: Path) -> None:
    model = Shifted()
    x = inputs()
    data = [(x, model(x).argmax(1))]

    def run() -> Any:
        return accuracy(model, data, pairs(model), [0.1], records=tmp_path, logits=exact(model) if given else None)

    before = run()
    assert run() == before
    model.shift = 5.0
    with pytest.raises(RecordError, match=r"attributes shift was 0\.0, now 5\.0"):
        run()


def test_a_number_that_only_later_samples_show_counts(tmp_path: Path) -> None:
    model = Shifted(late=True)
    x = inputs()
    x[:25, 0], x[25:, 0] = -x[:25, 0].abs(), x[25:, 0].abs()
    data = TensorDataset(x, model(x).argmax(1))
    bound = lipkit.lipschitz(model.linear, x[:1])

    def run() -> Any:
        return accuracy(model, DataLoader(data, batch_size=25), lambda _: bound, [0.1], records=tmp_path, name="late",
                        logits=exact(model))  # fmt: skip

    run()
    model.shift = 5.0
    with pytest.raises(RecordError, match="attributes shift"):
        run()


def test_a_number_outside_of_the_model_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Scaled()
    x = inputs()
    data, bound = [(x, model(x).argmax(1))], pairs(model)
    accuracy(model, data, bound, [0.1], records=tmp_path)
    # Neither a tensor nor an attribute of the model changes, and the given constant stays true.
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 0.5)
    with pytest.raises(RecordError, match="network"):
        accuracy(model, data, bound, [0.1], records=tmp_path)


def test_results_that_the_model_contradicts_are_refused(tmp_path: Path) -> None:
    # Whatever changed it, be it a file that the model reads, shows in the first batch.
    model = Shifted()
    x = inputs()
    data, bound = [(x, model(x).argmax(1))], pairs(model)
    accuracy(model, data, bound, [0.1], records=tmp_path)
    path = tmp_path / "samples-0000.jsonl"
    lines = read_lines(path)
    sure = max(range(50), key=lambda i: lines[i]["radius"])
    for name, factor in (("radius", 1.0001), ("radius", 0.9999), ("predicted", 0)):
        value = lines[sure][name] * factor if factor else (lines[sure]["predicted"] + 1) % 3
        changed = [{**line, name: value} if i == sure else line for i, line in enumerate(lines)]
        write_lines(path, changed)
        with pytest.raises(RecordError, match=f"for sample {sure}, and the model gives others now"):
            accuracy(model, data, bound, [0.1], records=tmp_path)
    # What another machine may round otherwise is no contradiction.
    rounded = [{**line, "radius": line["radius"] * (1 + 1e-9)} for line in lines]
    write_lines(path, rounded)
    accuracy(model, data, bound, [0.1], records=tmp_path)


class Drawn(Dataset[tuple[Tensor, int]]):
    """Data that are not in memory: each sample is made when it is asked for."""

    def __init__(self, label: int = 0, add: float = 0.0, at: int = 256, count: int = 600) -> None:
        self.label, self.add, self.at, self.count = label, add, at, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return (x, 0) if index < self.at else (x + self.add, self.label)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Drawn(label=1), r"sample 256 with another label \(0, now 1\)"),
        (Drawn(label=1, at=599), r"sample 599 with another label"),
        (Drawn(add=1e-3, at=300), "sample 300 with another input"),
        (Drawn(count=599), r"data samples was 600, now 599"),
    ],
)
def test_results_of_other_samples_are_not_used(other: Drawn, said: str, tmp_path: Path) -> None:
    model = Shifted()
    bound = pairs(model)
    before = accuracy(model, Drawn(), bound, [0.1], records=tmp_path)
    assert accuracy(model, Drawn(), bound, [0.1], records=tmp_path) == before
    with pytest.raises(RecordError, match=said):
        accuracy(model, other, bound, [0.1], records=tmp_path)


class Endless:
    """An iterable that does not tell its length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x, torch.zeros(10, dtype=torch.long)) for x in inputs().split(10)[: self.count])


def test_samples_that_the_data_no_longer_have_are_named(tmp_path: Path) -> None:
    model = Shifted()
    accuracy(model, Endless(5), pairs(model), [0.1], records=tmp_path)
    with pytest.raises(RecordError, match="sample 30, which the data do not have"):
        accuracy(model, Endless(3), pairs(model), [0.1], records=tmp_path)


def test_what_a_loader_makes_of_the_data_counts(tmp_path: Path) -> None:
    model = Shifted()
    data = TensorDataset(inputs(), torch.zeros(50, dtype=torch.long))

    def moved(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.stack([x + 1 for x, _ in batch]), torch.stack([y for _, y in batch])

    accuracy(model, DataLoader(data, batch_size=50), pairs(model), [0.1], records=tmp_path)
    with pytest.raises(RecordError, match="sample 0 with another input"):
        accuracy(model, DataLoader(data, batch_size=50, collate_fn=moved), pairs(model), [0.1], records=tmp_path)


def test_results_of_another_schedule_are_not_continued(tmp_path: Path) -> None:
    model = Shifted()
    data, bound = [(inputs(), torch.zeros(50, dtype=torch.long))], pairs(model)
    weak = PGD(0.5, steps=3, schedule=Halving(start=1e-6))
    accuracy(model, data, bound, [0.5], attack=weak, records=tmp_path)
    with pytest.raises(RecordError, match=r"attack schedule was .*start=1e-06"):
        accuracy(model, data, bound, [0.5], attack=replace(weak, schedule=Halving()), records=tmp_path)


class Planned(Attack):
    """An attack whose code is ours."""

    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        return near.center


def test_results_of_an_attack_with_other_code_are_not_continued(tmp_path: Path) -> None:
    model = Shifted()
    data, bound = [(inputs(), torch.zeros(50, dtype=torch.long))], pairs(model)
    accuracy(model, data, bound, [0.5], attack=Planned(0.5), records=tmp_path)
    # The same class after an edit.
    edited = type("Planned", (Attack,), {"_search": lambda *_: inputs(), "__module__": __name__})
    with pytest.raises(RecordError, match="attack whole"):
        accuracy(model, data, bound, [0.5], attack=edited(0.5), records=tmp_path)


def test_given_functions_are_known_by_their_code(tmp_path: Path) -> None:
    model = Shifted()
    data, bound = [(inputs(), torch.zeros(50, dtype=torch.long))], pairs(model)
    good, other = exact(model), exact(model)
    accuracy(model, data, bound, [0.1], records=tmp_path / "logits", logits=good)
    accuracy(model, data, bound, [0.1], records=tmp_path / "logits", logits=other)
    with pytest.raises(RecordError, match="logits"):
        accuracy(model, data, bound, [0.1], records=tmp_path / "logits", logits=lambda x: replace(good(x)))
    network = lipkit.capture(model, inputs()[:1])

    def around(size: float) -> Callable[[Tensor], Bound]:
        return lambda x: bounds.Local(bounds.DAG())(network, Ball(x, size))

    found = accuracy(model, data, around(0.5), [0.1], records=tmp_path / "bound", name="local")
    assert accuracy(model, data, around(0.5), [0.1], records=tmp_path / "bound", name="local") == found
    with pytest.raises(RecordError, match="bound"):
        accuracy(model, data, around(0.25), [0.1], records=tmp_path / "bound", name="local")


@pytest.mark.slow
def test_a_constrained_model_is_continued(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Linear(4, 8, method=lnn.Householder()), lnn.MaxMin(), lnn.Linear(8, 3))
    x = inputs()
    data = DataLoader(TensorDataset(x, model(x).argmax(1)), batch_size=20)
    whole = accuracy(model, data, pairs(model), [0.1], attack=PGD(0.1, steps=3), records=tmp_path)
    path = tmp_path / "samples-0000.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:30]))
    again = accuracy(model, data, pairs(model), [0.1], attack=PGD(0.1, steps=3), records=tmp_path)
    assert again == whole


def test_results_from_before_inputs_were_told_are_refused(tmp_path: Path) -> None:
    model = Shifted()
    data, bound = [(inputs(), torch.zeros(50, dtype=torch.long))], pairs(model)
    accuracy(model, data, bound, [0.1], records=tmp_path)
    path = tmp_path / "samples-0000.jsonl"
    lines = read_lines(path)
    write_lines(path, ({k: v for k, v in line.items() if k != "digest"} for line in lines))
    with pytest.raises(RecordError, match="line 1 is no result of a sample"):
        accuracy(model, data, bound, [0.1], records=tmp_path)
