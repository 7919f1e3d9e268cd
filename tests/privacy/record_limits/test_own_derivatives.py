"""A backward pass that is not the derivative of the forward pass is refused, before a limit is stated."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import privacy
from lipkit.errors import UnsupportedError
from lipkit.privacy.record_limits.own_derivatives import refuse_global_hooks, refuse_longer_gradients
from support.record_gradients import drawn_records, gradient_norms, largest_ratios

INPUTS = privacy.Inputs((4,), 2.0)


class Steep(torch.autograd.Function):
    """x / 100 forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x / 100

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0]


class Written(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Steep.apply(x)


class StraightThrough(nn.Module):
    """The same by `detach`."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x / 100 - x).detach()


class Hooked(nn.Module):
    """The same by a hook on a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = x / 100
        if y.requires_grad:
            y.register_hook(lambda gradient: 100 * gradient)
        return y


class Stopped(nn.Module):
    """Half of the path has no gradient: a shorter one than that of the function."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2 + (x / 2).detach()


def model_of(part: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), part, nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Written(), "SteepBackward, a function with a derivative of its own"),
        (StraightThrough(), "by the model's backward pass"),
        (Hooked(), "by the model's backward pass"),
    ],
)
def test_longer_gradients_are_refused(part: nn.Module, said: str):
    for model in (model_of(part), model_of(part).double()):
        with pytest.raises(UnsupportedError, match=said):
            privacy.sensitivity(model, nn.CrossEntropyLoss(), INPUTS)


def test_the_difference_finds_a_written_derivative_as_well():
    with pytest.raises(UnsupportedError, match=r"gradient of 0\.weight has the length"):
        refuse_longer_gradients(model_of(Written()), INPUTS)


def test_shorter_gradients_harm_nobody():
    model = model_of(Stopped()).double()
    limits = privacy.sensitivity(model, nn.CrossEntropyLoss(), INPUTS)
    x = drawn_records((4,), 2.0, 60)
    ratios = largest_ratios(limits, gradient_norms(model, nn.CrossEntropyLoss(), x, torch.arange(60) % 3))
    assert 0 < ratios["0.weight"] < 0.6


class Float32Inside(nn.Module):
    """Rounds to float32 whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float().square().to(x.dtype)


class Kept(nn.Module):
    """Holds a tensor that no conversion of the module finds."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.randn(6, 6)]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kept[0]


@pytest.mark.parametrize(
    "part",
    [
        nn.ReLU(), lnn.MaxMin(), nn.LayerNorm(6, eps=1e-3), nn.Softmax(1), lnn.CPL(6, 8), lnn.SLL(6), lnn.Linear(6, 6),
        Float32Inside(), Kept(), nn.Tanh(), nn.Hardshrink(),
    ],
    ids=lambda part: type(part).__name__,
)  # fmt: skip
def test_derivatives_pass(part: nn.Module):
    refuse_longer_gradients(lnn.condense(model_of(part)), INPUTS)


def test_ties_at_a_start_at_zero_pass():
    model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (1, 6)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(3, 3))
    for p in model.parameters():
        nn.init.zeros_(p)
    refuse_longer_gradients(model, INPUTS)


def kinds_of_hooks(part: nn.Module) -> list[Any]:
    return [
        part.register_forward_hook, part.register_forward_pre_hook, part.register_full_backward_hook,
        part.register_full_backward_pre_hook,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("part", [nn.ReLU(), lnn.Linear(6, 6)], ids=lambda part: type(part).__name__)
def test_hooks_are_refused(kind: int, part: nn.Module):
    model = model_of(part)
    handle = kinds_of_hooks(part)[kind](lambda *_: None)
    try:
        with pytest.raises(UnsupportedError, match="at 1 has a hook"):
            privacy.sensitivity(model, nn.CrossEntropyLoss(), INPUTS)
    finally:
        handle.remove()
    assert privacy.sensitivity(model, nn.CrossEntropyLoss(), INPUTS)


def test_hooks_on_all_modules_are_refused():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(UnsupportedError, match="Hooks on all modules"):
            refuse_global_hooks()
    finally:
        handle.remove()
    refuse_global_hooks()


def test_small_tensors_are_moved_in_their_own_units():
    # A step of 2^-20 or more crosses the kinks of units whose inputs are as small as these weights: it refused 4 of 20.
    for seed in range(20):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2)).double()
        with torch.no_grad():
            for p in model.parameters():
                p *= 1e-4
        refuse_longer_gradients(model, INPUTS)
