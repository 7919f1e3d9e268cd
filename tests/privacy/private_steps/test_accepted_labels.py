"""Labels are refused before anything is released where a record would meet the labels of others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import losses, privacy
from lipkit.errors import ArgumentError, LipkitError, NonFiniteError, ShapeError

ROWS = 20


def begin(loss: nn.Module, y: Any, path: Path, outputs: int = 1, clip: privacy.Clip | None = None) -> privacy.Training:
    torch.manual_seed(0)
    model = nn.Linear(3, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = privacy.Plan(ROWS, ROWS, 2, 1e-3, sigma=1.0, accountant=privacy.RDP(), sampling=privacy.Whole())
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
    return privacy.Training(
        model, loss, optimizer, (x, y), plan, privacy.Inputs((3,), 1.0), ledger=path / "ledger", clip=clip
    )


ENTRYWISE = [nn.L1Loss(), nn.HuberLoss(), nn.SmoothL1Loss(), nn.MSELoss(), nn.MSELoss(reduction="sum")]


@pytest.mark.parametrize("loss", ENTRYWISE, ids=lambda loss: type(loss).__name__)
def test_labels_of_one_axis_would_meet_every_record(loss: nn.Module, tmp_path: Path):
    # The defect: (n, 1) against (n,) is an n x n table, in which one label moves the gradients of all records.
    y = torch.zeros(ROWS)
    z = torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(2)).requires_grad_()
    moved: list[Tensor] = []
    for last in (0.0, 50.0):
        y[-1] = last
        with pytest.warns(UserWarning, match="broadcasting"):
            value = loss(z, y)
        moved += torch.autograd.grad(value, z)
    assert bool((moved[0] != moved[1])[:-1].any())
    with pytest.raises(ShapeError, match="the labels of all others"):
        begin(loss, y, tmp_path, clip=privacy.Fixed(0.1))
    assert not (tmp_path / "ledger").exists()
    with begin(loss, y[:, None], tmp_path, clip=privacy.Fixed(0.1)) as training:
        training.step()


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "error", "said"),
    [
        (nn.CrossEntropyLoss(), 3, torch.full((ROWS,), 3), ArgumentError, r"lie in 0\.\.2"),
        (nn.CrossEntropyLoss(), 3, torch.zeros(ROWS, dtype=torch.int32), ArgumentError, r"\.long\(\)"),
        (nn.CrossEntropyLoss(), 3, torch.full((ROWS, 3), 0.5), ArgumentError, "neither"),
        (nn.CrossEntropyLoss(), 3, torch.full((ROWS, 3), torch.nan), NonFiniteError, "NaN"),
        (nn.CrossEntropyLoss(), 3, torch.zeros(ROWS, dtype=torch.complex64), ArgumentError, "complex"),
        (nn.BCEWithLogitsLoss(), 1, torch.full((ROWS, 1), 1.5), ArgumentError, r"\[0, 1\]"),
        (nn.BCEWithLogitsLoss(), 1, torch.zeros(ROWS), LipkitError, "does not accept"),
        (losses.TauBCE(), 1, torch.full((ROWS, 1), 7.0), ArgumentError, "Labels of TauBCE are 0 or 1"),
        (losses.TauBCE(), 1, torch.full((ROWS, 1), 7), ArgumentError, "some are neither"),
        (losses.Hinge(), 1, torch.full((ROWS, 1), -0.5), ArgumentError, "Labels of Hinge"),
        (privacy.BinaryKR(), 1, torch.full((ROWS, 1), 2), ArgumentError, "Labels of BinaryKR"),
        (losses.TauBCE(), 1, torch.zeros(ROWS), ShapeError, "reshape"),
    ],
)
def test_other_labels_are_refused(
    loss: nn.Module, outputs: int, y: Tensor, error: type[Exception], said: str, tmp_path: Path
):
    with pytest.raises(error, match=said):
        begin(loss, y, tmp_path, outputs)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    "y", [torch.arange(ROWS) % 2, 2 * (torch.arange(ROWS) % 2) - 1, torch.arange(ROWS) % 2 == 0, torch.zeros(ROWS)]
)
def test_binary_labels_of_every_kind_are_accepted(y: Tensor, tmp_path: Path):
    with begin(losses.TauBCE(), y[:, None], tmp_path) as training:
        training.step()


@pytest.mark.parametrize("y", [torch.zeros(ROWS, 1, dtype=torch.int64), torch.zeros(ROWS, 1, dtype=torch.float64)])
def test_labels_that_only_the_derivative_does_not_take_are_refused_in_a_sentence(y: Tensor, tmp_path: Path):
    # torch computes this loss for labels of any type, and its derivative for those of the outputs' type alone.
    assert float(nn.HuberLoss()(torch.zeros(ROWS, 1), y)) == 0
    with pytest.raises(ArgumentError, match="HuberLoss does not accept the labels"):
        begin(nn.HuberLoss(), y, tmp_path)
    assert not (tmp_path / "ledger").exists()
