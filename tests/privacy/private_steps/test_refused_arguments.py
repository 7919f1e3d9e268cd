"""What a training cannot be given is refused in one sentence, before a ledger exists."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lipkit import privacy
from lipkit.errors import ArgumentError, LipkitError, NonFiniteError, ShapeError, UnsupportedError
from lipkit.optim import SAM
from support.unchecked import unchecked

ROWS = 20


class Flat(nn.Module):
    """One number a record, without an axis for it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)[:, 0]


def inputs() -> Tensor:
    return torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))


def labels() -> Tensor:
    return torch.arange(ROWS) % 2


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def begin(path: Path, model: nn.Module | None = None, **more: Any) -> privacy.Training:
    model = plain() if model is None else model
    plan = privacy.Plan(ROWS, ROWS, 2, 1e-3, sigma=1.0, accountant=privacy.RDP(), sampling=privacy.Whole())
    make: Callable[[nn.Module], Any] = more.pop("optimizer", lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    records = more.pop("records", (inputs(), labels()))
    loss = more.pop("loss", nn.CrossEntropyLoss())
    with unchecked():
        return privacy.Training(
            model, loss, make(model), records, plan, privacy.Inputs((3,), 1.0), ledger=path / "ledger", **more
        )


def set_of() -> TensorDataset:
    return TensorDataset(inputs(), labels())


def infinite() -> Tensor:
    x = inputs()
    x[7, 1] = torch.inf
    return x


class Scaled(nn.CrossEntropyLoss):
    """A loss with a trained temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


REFUSED: dict[str, tuple[dict[str, Any], type[LipkitError], str]] = {
    "a loader": ({"records": DataLoader(set_of(), 4)}, ArgumentError, "got DataLoader; batches are drawn by the plan"),
    "a data set": ({"records": set_of()}, ArgumentError, "got TensorDataset"),
    "an iterator": ({"records": iter([(inputs(), labels())])}, ArgumentError, "got list_iterator"),
    "one tensor": ({"records": inputs()}, ArgumentError, "a pair of tensors"),
    "lists": ({"records": (inputs().tolist(), labels().tolist())}, ArgumentError, "a pair of tensors"),
    "three tensors": ({"records": (inputs(), labels(), labels())}, ArgumentError, "a pair of tensors"),
    "too few labels": ({"records": (inputs(), labels()[1:])}, ShapeError, "tensors of one length"),
    "other types": ({"records": (inputs().double(), labels())}, ArgumentError, r"the model's type torch\.float32"),
    "other shapes": ({"records": (inputs()[:, :2], labels())}, ShapeError, r"Records have shape \(batch, 3\)"),
    "infinite records": ({"records": (infinite(), labels())}, NonFiniteError, "Record 7"),
    "no records at a time": ({"chunk": 0}, ArgumentError, "chunk is a number of records"),
    "one output without axis": (
        {"model": Flat(), "loss": nn.L1Loss(), "records": (inputs(), labels().float()), "clip": privacy.Fixed(0.1)},
        ShapeError, "a batch axis and at least one other",
    ),
    "half precision": ({"model": plain().bfloat16()}, UnsupportedError, "train in float32"),
    "a trained loss": ({"loss": Scaled()}, UnsupportedError, "Scaled has trained parameters"),
    "a closure": (
        {"optimizer": lambda model: torch.optim.LBFGS(model.parameters())},
        UnsupportedError, "LBFGS evaluates a closure",
    ),
    "two gradients": (
        {"optimizer": lambda model: SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1)},
        UnsupportedError, "SAM evaluates a closure",
    ),
    "other parameters": (
        {"optimizer": lambda model: torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)},
        ArgumentError, "1 parameters that are not the model's",
    ),
    "parameters left out": (
        {"optimizer": lambda model: torch.optim.SGD([model.weight], lr=0.1)}, ArgumentError, "bias: trained, but not by"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_before_there_is_a_ledger(name: str, tmp_path: Path):
    more, error, said = REFUSED[name]
    with pytest.raises(error, match=said) as found:
        begin(tmp_path, **more)
    assert "\n" not in str(found.value)
    assert not (tmp_path / "ledger").exists()


def test_the_same_without_the_defect_is_accepted(tmp_path: Path):
    with begin(tmp_path) as training:
        training.step()


def test_autocast_is_refused_at_the_start_and_in_every_step(tmp_path: Path):
    with begin(tmp_path) as training:
        with torch.autocast("cpu", torch.bfloat16):
            with pytest.raises(UnsupportedError, match="leave its block"):
                training.step()
            with pytest.raises(UnsupportedError, match="leave its block"):
                begin(tmp_path / "other")
        assert training.spent().steps == 0


def test_hooks_on_all_modules_are_refused_in_every_step(tmp_path: Path):
    with begin(tmp_path) as training:
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            with pytest.raises(UnsupportedError, match="do not profile"):
                training.step()
        finally:
            handle.remove()
        assert training.spent().steps == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clip": 0.2}, r"clip is a privacy.Fixed or privacy.Quantile, got 0.2"),
        ({"loss": nn.functional.cross_entropy}, r"A loss is a module, such as torch.nn.CrossEntropyLoss\(\)"),
    ],
)
def test_arguments_of_another_kind_are_named(change: dict[str, Any], sentence: str, tmp_path: Path):
    with pytest.raises(ArgumentError, match=sentence):
        begin(tmp_path, **change)
    assert not (tmp_path / "ledger").exists()


def test_a_ledger_that_is_a_string_is_refused_and_what_was_spent_is_a_sentence(tmp_path: Path):
    plan = privacy.Plan(ROWS, ROWS, 2, 1e-3, sigma=1.0, accountant=privacy.RDP(), sampling=privacy.Whole())
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unchecked(), pytest.raises(ArgumentError, match=r"ledger is a pathlib.Path, got 'file'; write Path\('file'\)"):
        privacy.Training(
            model, nn.CrossEntropyLoss(), optimizer, (inputs(), labels()), plan, privacy.Inputs((3,), 1.0),
            ledger="file",  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
    with begin(tmp_path) as training:
        training.step()
        spent = training.spent()
    assert str(spent) == f"epsilon {spent.epsilon:.4g} at delta 0.001 after 1 of 2 steps"


def test_a_ledger_in_use_is_refused(tmp_path: Path):
    with begin(tmp_path), pytest.raises(LipkitError, match="ledger"):
        begin(tmp_path)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor flushes nothing")
def test_flushed_numbers_are_refused_in_every_step(tmp_path: Path):
    with begin(tmp_path) as training:
        torch.set_flush_denormal(True)
        try:
            # The derivative of a norm of 64 entries was eight times its limit then.
            with pytest.raises(UnsupportedError, match="flushed to zero"):
                training.step()
        finally:
            torch.set_flush_denormal(False)
        assert training.spent().steps == 0


def test_a_step_inside_a_step_is_refused(tmp_path: Path):
    # Another thread or `after` would write other weights under a sum whose limits are of the weights before.
    again: list[privacy.Training] = []

    def after() -> None:
        again[0].step()

    with begin(tmp_path, after=after) as training:
        again.append(training)
        with pytest.raises(ArgumentError, match="is running, in another thread or in `after`"):
            training.step()
        # The first was counted, the second was not begun, and the training goes on.
        assert training.spent().steps == 1
        again[0] = begin_nothing()
        training.step()


def begin_nothing() -> Any:
    class Nothing:
        def step(self) -> None: ...

    return Nothing()
