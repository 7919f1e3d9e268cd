"""Models and losses that mix the records of a batch are found before a private record is read."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import losses, privacy
from lipkit.errors import UnsupportedError
from lipkit.privacy.private_steps.separate_records import batch_sizes, refuse_mixing_loss, refuse_mixing_model
from lipkit.privacy.record_limits.loss_constants import stated_gradient

INPUTS = privacy.Inputs((4,), 2.0)


class Batched(nn.Module):
    """Subtracts the mean of a batch of more records than `above`."""

    def __init__(self, above: int) -> None:
        super().__init__()
        self.above = above

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > self.above else x


class Shifted(nn.Module):
    """Passes the gradient of each record to its neighbour, by a hook that batches of one do not show."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient.roll(1, 0))
        return y


def model_of(part: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), part, nn.Linear(6, 3))


@pytest.mark.parametrize("part", [Batched(100), Batched(999)])
def test_models_that_mix_by_the_size_of_the_batch_are_refused(part: nn.Module, tmp_path: Path):
    model = model_of(part)
    # The capture sees one record, so the limits are those of a model that mixes nothing.
    assert privacy.sensitivity(model, nn.CrossEntropyLoss(), INPUTS)
    with pytest.raises(UnsupportedError, match="one record moves the gradients of all"):
        refuse_mixing_model(model, INPUTS, 1_000)
    plan = privacy.Plan(1_000, 1_000, 1, 1e-4, sigma=1.0, accountant=privacy.RDP(), sampling=privacy.Whole())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = torch.randn(1_000, 4), torch.arange(1_000) % 3
    with pytest.raises(UnsupportedError, match="one record moves the gradients of all"):
        privacy.Training(model, nn.CrossEntropyLoss(), optimizer, records, plan, INPUTS, ledger=tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


def test_gradients_that_change_places_are_refused():
    with pytest.raises(UnsupportedError, match=r"another gradient of 0\.weight in a batch of 2"):
        refuse_mixing_model(model_of(Shifted()), INPUTS, 1_000)


@pytest.mark.parametrize(
    "part", [nn.ReLU(), lnn.MaxMin(), nn.LayerNorm(6, eps=0.1), nn.Softmax(1), nn.BatchNorm1d(6).eval()]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others_pass(part: nn.Module, dtype: torch.dtype):
    refuse_mixing_model(model_of(part).to(dtype), INPUTS, 600)


class Centered(nn.Module):
    """The mean square of outputs less their mean over the batch, for batches of more than `above` records."""

    def __init__(self, above: int = 0) -> None:
        super().__init__()
        self.reduction, self.above = "mean", above

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        del target
        middle = input.mean(0) if len(input) > self.above else 0.0
        return (input - middle).square().sum(1).mean()

    def logit_constant(self, outputs: int) -> float:
        return torch.inf


class Hardest(nn.Module):
    """The cross-entropy of the record with the largest one."""

    reduction = "sum"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(input, target, reduction="none").amax()

    def logit_constant(self, outputs: int) -> float:
        return 2**0.5


class Larger(nn.Module):
    """A loss with ten times the constant that it states."""

    reduction = "mean"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return 10 * nn.functional.cross_entropy(input, target)

    def logit_constant(self, outputs: int) -> float:
        return 2**0.5


class Tripled(nn.CrossEntropyLoss):
    """A cross-entropy by name."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return 3 * super().forward(input, target)


class Running(nn.Module):
    """A cross-entropy whose classes weigh by how often they were seen so far: too little to show in one batch."""

    reduction = "sum"

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.seen: Tensor | float
        if buffer:
            self.register_buffer("seen", torch.full((), 1e6))
        else:
            self.seen = 1e6

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        self.seen = self.seen + (target == 0).sum().item()
        return nn.functional.cross_entropy(input, target, reduction="sum") * (1e6 / self.seen)

    def logit_constant(self, outputs: int) -> float:
        return 2**0.5


class Remembering(nn.Module):
    """A layer that keeps a share of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [0.0]

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            self.kept[0] = 0.9 * self.kept[0] + 0.1 * float(x.detach().mean())
        return x


def test_a_model_that_remembers_records_is_refused():
    with pytest.raises(UnsupportedError, match="changes its own state"):
        refuse_mixing_model(model_of(Remembering()), INPUTS, 40)


def tried(loss: nn.Module, most: int = 300) -> None:
    refuse_mixing_loss(loss, torch.arange(90) % 3, torch.zeros(2, 3), stated_gradient(loss, 3), most)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (Centered(), "Centered gives records other gradients in a batch of 2 than alone"),
        (Centered(200), "in a batch of 256 than alone"),
        (Hardest(), "moves the gradients of all"),
        (Larger(), "correct logit_constant"),
        (Tripled(), "not that of its base class"),
        (Running(buffer=True), "Running changes its own state"),
        (Running(buffer=False), "Running changes its own state"),
    ],
)
def test_losses_that_mix_or_disprove_their_constant_are_refused(loss: nn.Module, said: str, tmp_path: Path):
    with pytest.raises(UnsupportedError, match=said):
        tried(loss)
    model = model_of(nn.ReLU())
    plan = privacy.Plan(300, 300, 1, 1e-4, sigma=1.0, accountant=privacy.RDP(), sampling=privacy.Whole())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records, path = (torch.randn(300, 4), torch.arange(300) % 3), tmp_path / "ledger"
    with pytest.raises(UnsupportedError, match=said):
        # Clipping hides no mixing: one record moves the gradients of all, each by up to twice the limit.
        privacy.Training(model, loss, optimizer, records, plan, INPUTS, ledger=path, clip=privacy.Fixed(0.1))
    assert not path.exists()


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum"),
        nn.MultiMarginLoss(),
        losses.TauCrossEntropy(500.0),
        losses.LogitAnnealing(),
        losses.SoftHKR(),
        losses.LseHKR(alpha=2.0),
        privacy.FixedPriorHKR([0.2, 0.3, 0.5], alpha=2.0),
        privacy.BoundedCosine(0.5),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_of_single_records_pass(loss: nn.Module):
    tried(loss)


def test_the_sizes_hold_every_power_and_the_end():
    assert batch_sizes(1) == [1]
    assert batch_sizes(7) == [1, 2, 3, 4, 5, 7]
    assert batch_sizes(40) == [1, 2, 3, 4, 5, 8, 16, 32, 40]
