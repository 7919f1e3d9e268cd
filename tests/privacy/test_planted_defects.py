"""Defects that were made in public code, or are easy to make: the test of records finds each of them."""

import math

import pytest
import torch
from torch import nn

import lipkit.nn as lnn
from lipkit import privacy
from lipkit.nn.layers.conv import PaddingMode
from lipkit.privacy.record_limits import captured_sensitivity, gradient_fold, tensor_rules
from support.record_gradients import Mean, climb, drawn_records, gradient_norms, largest_ratios

INPUTS = privacy.Inputs((1, 8, 8), 2.0)


def worst(model: nn.Module, limits: privacy.Limits, inputs: privacy.Inputs = INPUTS) -> float:
    """The largest ratio of a gradient to its limit, after a climb."""
    x = drawn_records(inputs.shape, inputs.radius, 60)
    y = torch.zeros(60)
    found = climb(lambda at: gradient_norms(model, Mean(), at, y), x, inputs.radius)
    every = torch.cat([x, found])
    return max(largest_ratios(limits, gradient_norms(model, Mean(), every, torch.zeros(120))).values())


def images(mode: PaddingMode = "zeros") -> nn.Module:
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode=mode)
    return nn.Sequential(layer, nn.Flatten()).double()


def test_a_bias_without_the_root_of_its_places(monkeypatch: pytest.MonkeyPatch):
    model = images()
    assert worst(model, privacy.sensitivity(model, Mean(), INPUTS)) <= 1
    found = captured_sensitivity.Sensitivity._parameter

    def once(self: captured_sensitivity.Sensitivity, tensor: torch.Tensor) -> object:
        return captured_sensitivity._Found(found(self, tensor).name, 1.0)

    monkeypatch.setattr(captured_sensitivity.Sensitivity, "_parameter", once)
    # The gradient is sqrt(64) times the wrong limit.
    assert worst(model, privacy.sensitivity(model, Mean(), INPUTS)) == pytest.approx(8 / (1 + 2.0**-7), rel=1e-3)


def test_the_root_of_the_taps_under_reflect_padding(monkeypatch: pytest.MonkeyPatch):
    model = images("reflect")
    assert worst(model, privacy.sensitivity(model, Mean(), INPUTS)) <= 1
    monkeypatch.setattr(tensor_rules, "kernel_factor", lambda op: math.sqrt(math.prod(op.kernel)))
    assert worst(model, privacy.sensitivity(model, Mean(), INPUTS)) > 1.01


def test_slope_one_for_gelu(monkeypatch: pytest.MonkeyPatch):
    model = nn.Sequential(nn.Linear(1, 1), nn.GELU()).double()
    inputs = privacy.Inputs((1,), 2.0)
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(0.9)
        model.get_parameter("0.bias").zero_()
    assert worst(model, privacy.sensitivity(model, Mean(), inputs), inputs) <= 1
    monkeypatch.setattr(gradient_fold.NormFold, "_slope", lambda *_: 1.0)
    assert worst(model, privacy.sensitivity(model, Mean(), inputs), inputs) > 1.05


def test_norms_of_earlier_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), lnn.MaxMin(), nn.Linear(4, 4, bias=False)).double()
    inputs = privacy.Inputs((4,), 2.0)
    stale = privacy.sensitivity(model, Mean(), inputs)
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(10)
    assert worst(model, stale, inputs) > 1.5
    assert worst(model, privacy.sensitivity(model, Mean(), inputs), inputs) <= 1


def test_noise_for_the_weight_on_the_free_numbers():
    # The limit is that of the computed weight; the gradient of the free numbers is far above it.
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Linear(24, 16, bias=False)).double()
    raw = model.get_parameter("0.parametrizations.weight.original")
    with torch.no_grad():
        raw.mul_(0.05)
    limits = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((24,), 1.0))
    x = drawn_records((24,), 1.0, 40)
    largest = 0.0
    for record in x:
        (gradient,) = torch.autograd.grad(nn.CrossEntropyLoss()(model(record[None]), torch.tensor([0])), raw)
        largest = max(largest, float(gradient.norm()))
    assert largest > 2 * float(limits["0.weight"].value)


class Norm(nn.Module):
    """The norm of the values of a record, as torch computes it."""

    def __init__(self, spelled: bool) -> None:
        super().__init__()
        self.spelled = spelled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(1, keepdim=True).sqrt() if self.spelled else x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_that_lose_their_squares(dtype: torch.dtype, spelled: bool, monkeypatch: pytest.MonkeyPatch):
    model = nn.Sequential(nn.Linear(64, 64), Norm(spelled), nn.Linear(1, 2)).to(dtype)
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(64))
        model.get_parameter("0.bias").zero_()
        model.get_parameter("2.weight").copy_(torch.tensor([[1.0], [-1.0]]))
        # As wrong as can be about label 0, so that the loss has its largest gradient.
        model.get_parameter("2.bias").copy_(torch.tensor([-20.0, 20.0]))
    inputs, loss = privacy.Inputs((64,), 1.0), nn.CrossEntropyLoss()
    # Entries whose squares are just below half of the smallest number, beside one whose square is not lost.
    least = math.sqrt(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    found = []
    for size in torch.linspace(0.2, 4, 60, dtype=dtype):
        x = torch.full((1, 64), 0.69 * least, dtype=dtype)
        x[0, 0] = size * least
        (gradient,) = torch.autograd.grad(loss(model(x), torch.tensor([0])), model.get_parameter("0.bias"))
        # As in a step: what is not finite counts as zero.
        found.append(float(gradient.nan_to_num(0.0, 0.0, 0.0).norm()))
    limit = float(privacy.sensitivity(model, loss, inputs)["0.bias"].value)
    assert max(found) <= limit
    monkeypatch.setattr(gradient_fold, "_lost_squares", lambda _: 1.0)
    wrong = float(privacy.sensitivity(model, loss, inputs)["0.bias"].value)
    assert max(found) > 1.5 * wrong
