"""Models whose gradients of single records have no proven bound are refused in a sentence."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import privacy
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, CaptureError, LipkitError, NotProvenError, ShapeError, UnsupportedError
from lipkit.norms import Lanczos


class Noise(nn.Module):
    """Draws numbers in training."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


class Doubled(nn.Module):
    """Multiplies with twice its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (2 * self.weight)


class Unused(nn.Module):
    """Has a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Centered(nn.Module):
    """Subtracts the mean of the batch, in every mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Chance(nn.Module):
    """Declares a constant that may be wrong."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2

    def declared_lipschitz(self, in_shape: tuple[int, ...]) -> Bound:
        return replace(Bound.from_value(0.5, Kind.UPPER, "a draw"), failure=0.1)


@pytest.mark.parametrize(
    ("part", "error", "sentence"),
    [
        (nn.BatchNorm1d(4), UnsupportedError, "BatchNorm1d at 1 mixes the records"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), UnsupportedError, "mixes the records"),
        (nn.BatchNorm1d(4).eval(), UnsupportedError, r"1\.bias, 1\.weight"),
        (nn.Dropout(0.5), UnsupportedError, "Dropout at 1 draws numbers"),
        (lnn.BatchCentering(4), UnsupportedError, "changes its buffer"),
        (Noise(), UnsupportedError, "something else in training"),
        (Centered(), LipkitError, "batch"),
        (nn.PReLU(), UnsupportedError, r"1\.weight: .*freeze"),
        (Doubled(), UnsupportedError, r"1\.weight.*freeze"),
        (Unused(), UnsupportedError, r"1\.spare.*freeze"),
    ],
)
def test_parts_are_refused_by_name(part: nn.Module, error: type[Exception], sentence: str):
    model = nn.Sequential(nn.Linear(4, 4), part)
    with pytest.raises(error, match=sentence):
        privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))


def test_what_is_in_evaluation_mode_or_frozen_is_allowed():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5).eval(), Doubled().requires_grad_(False))
    assert len(privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))) == 2


def test_nothing_to_train_is_refused():
    with pytest.raises(ArgumentError, match="unfreeze"):
        privacy.sensitivity(nn.Linear(4, 4).requires_grad_(False), nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))


def test_outputs_that_are_no_vector_are_refused():
    with pytest.raises(ShapeError, match="flatten"):
        privacy.sensitivity(nn.Conv2d(1, 2, 1), nn.CrossEntropyLoss(), privacy.Inputs((1, 3, 3), 1.0))


def test_complex_tensors_are_refused():
    model = nn.Linear(4, 4, dtype=torch.complex64)
    with pytest.raises((UnsupportedError, CaptureError), match="complex"):
        privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))


def test_norms_and_constants_that_hold_but_for_a_chance_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(NotProvenError, match="a chance of 1e-09, which no epsilon counts"):
        privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0), norm=Lanczos(failure=1e-9))
    declared = nn.Sequential(nn.Linear(4, 4), Chance(), nn.Linear(4, 4))
    with pytest.raises(NotProvenError, match=r"with probability 0\.1"):
        privacy.sensitivity(declared, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))


def test_the_model_is_not_changed():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).train()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    state = torch.get_rng_state()
    privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
