"""Views of a record are averaged: the record counts once, and a view reads no other record."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipkit import privacy
from lipkit.errors import ArgumentError, LipkitError, ShapeError, UnsupportedError

INPUTS = privacy.Inputs((4,), 1.0, center=0.1)
ROWS = 30
# Noise that no digit of a float64 weight of size one can show.
NEGLIGIBLE = 1e-14


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def stepped(path: Path, x: Tensor, views: privacy.Views | None, clip: privacy.Clip | None = None) -> list[Tensor]:
    """How far one step at rate 1 moves the parameters."""
    model = model_of()
    before = [p.detach().clone() for p in model.parameters()]
    plan = privacy.Plan(ROWS, ROWS, 1, 1e-3, sigma=NEGLIGIBLE, accountant=privacy.RDP(), sampling=privacy.Whole())
    optimizer, records = torch.optim.SGD(model.parameters(), lr=1.0), (x, torch.arange(len(x)) % 3)
    with privacy.Training(
        model, nn.CrossEntropyLoss(), optimizer, records, plan, INPUTS, ledger=path, clip=clip, views=views
    ) as training:
        training.step()
    return [old - p.detach() for old, p in zip(before, model.parameters(), strict=True)]


def drawn() -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("clip", [None, privacy.Fixed(0.3)])
def test_the_gradient_is_the_mean_over_the_views(clip: privacy.Clip | None, tmp_path: Path):
    x = drawn()
    shifts = iter([0.0, *(0.1, -0.2, 0.3)])
    # The first two calls are those of the check.
    calls = [0]

    def change(batch: Tensor) -> Tensor:
        calls[0] += 1
        return batch + (0.0 if calls[0] <= 2 else next(shifts))

    found = stepped(tmp_path / "views", x, privacy.Views(4, change), clip)
    model, loss, y = model_of(), nn.CrossEntropyLoss(), torch.arange(ROWS) % 3
    ball = privacy.Inputs((4,), 1.0)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for shift in (0.0, 0.1, -0.2, 0.3):
        for record, label in zip(ball(INPUTS(x) + shift), y, strict=True):
            z = model(record[None])
            value = loss(z if clip is None else clip(z), label[None])
            one = torch.autograd.grad(value, list(model.parameters()))
            expected = [e + g / 4 / ROWS for e, g in zip(expected, one, strict=True)]
    for a, b in zip(found, expected, strict=True):
        # Records beyond the ball end 2^-44 inside it, and there is noise of 1e-14.
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_a_record_moves_the_sum_by_its_limit_at_most_however_many_views(tmp_path: Path):
    x = drawn()
    limits = privacy.sensitivity(model_of(), nn.CrossEntropyLoss(), INPUTS).values_by_name()
    views = privacy.Views(8, lambda batch: 5 * batch)
    sums = [stepped(tmp_path / f"{rows}", x[:rows], views) for rows in (ROWS, ROWS - 1)]
    for limit, one, other in zip(limits.values(), *sums, strict=True):
        # Added up and not averaged, views would be up to eight times as much.
        assert 0 < float((one - other).norm()) * ROWS <= limit


def mixed(batch: Tensor) -> Tensor:
    return 0.7 * batch + 0.3 * batch.flip(0)


def standardised(batch: Tensor) -> Tensor:
    return batch - batch.mean(0)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (mixed, UnsupportedError, "moves the gradients of all"),
        (standardised, UnsupportedError, "moves the gradients of all"),
        (lambda batch: batch[:, :2], ShapeError, "the shape and type of the records"),
        (lambda batch: batch.float(), ShapeError, "the shape and type of the records"),
    ],
    ids=["mixed", "standardised", "cut", "rounded"],
)
def test_views_that_read_other_records_are_refused(
    change: Callable[[Tensor], Tensor], error: type[LipkitError], said: str, tmp_path: Path
):
    with pytest.raises(error, match=said):
        stepped(tmp_path / "ledger", drawn(), privacy.Views(2, change))
    assert not (tmp_path / "ledger").exists()


def test_random_views_are_accepted_and_stay_in_the_ball(tmp_path: Path):
    views = privacy.Views(3, lambda batch: batch + torch.randn_like(batch) / 0.0)
    assert all(bool(one.isfinite().all()) for one in stepped(tmp_path / "wild", drawn(), views))
    found = list(privacy.Views(3, lambda batch: batch + 9 * torch.randn_like(batch)).each(drawn(), INPUTS))
    assert len(found) == 3
    assert not torch.equal(found[0], found[1])
    assert max(float(one.norm(dim=1).max()) for one in found) <= 1.0


def test_no_views_are_refused():
    with pytest.raises(ArgumentError, match="1 view or more"):
        privacy.Views(0, torch.neg)
