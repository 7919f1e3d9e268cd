"""Models with habits that a conversion may get wrong: changes in place, arguments, dictionaries, modes, types."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.errors import UnsupportedError
from support.jacobians import steepest
from support.proven import proven


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.view = nn.Flatten()

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def changed_view(x: Tensor) -> Tensor:
    y = x.abs()
    y.view(-1, 4).relu_()
    return y


def changed_then_read(x: Tensor) -> Tensor:
    y = x.abs()
    z = y[:, :2]
    z += 1
    return torch.cat((z, y), 1)


def changed_by_position(x: Tensor) -> Tensor:
    y = -x
    return functional.relu(y, True) + y


def sibling_read_later(x: Tensor) -> Tensor:
    y = -x
    first, second = y[:, :3], y[:, 1:]
    return torch.cat((functional.relu_(first), second), 1)


@pytest.mark.parametrize("function", [changed_view, changed_then_read, changed_by_position, sibling_read_later])
def test_tensors_that_change_under_another_name_are_refused(function: Callable[[Tensor], Tensor]):
    with pytest.raises(UnsupportedError, match="changes a tensor that is used elsewhere too"):
        lnn.lipschitzify(Applied(function))


def in_a_row(x: Tensor) -> Tensor:
    y = -x
    y += 1
    y.relu_()
    return y.view(-1, 4)


def read_before(x: Tensor) -> Tensor:
    y = -x
    short = y.tanh()
    y += 1
    return torch.cat((short, y), 1)


def test_a_result_in_place_that_is_dropped_is_refused():
    with pytest.raises(UnsupportedError, match="used elsewhere too"):
        lnn.lipschitzify(Applied(in_a_row))


def test_changes_in_place_that_nobody_sees_are_converted():
    twin, _ = lnn.lipschitzify(Applied(read_before))
    x = torch.randn(3, 4)
    # A concatenation of two parts, each over sqrt(2), made smaller by 2^-22.
    torch.testing.assert_close(twin(x.clone()), read_before(x) / 2**0.5, rtol=1e-6, atol=1e-7)


class Arguments(nn.Module):
    """Further arguments that calls leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, features: bool = False, factor: float = 2.0) -> Tensor:
        if mask is not None:
            x = x * mask
        x = self.dense(x)
        return x if features else torch.relu(x) * factor


def test_arguments_that_calls_leave_out_have_their_defaults():
    twin, report = lnn.lipschitzify(Arguments())
    assert [row.was for row in report.rows] == ["Linear", "relu", "mul"]
    assert steepest(twin.double().eval(), (1, 4), points=2) <= 1 + 1e-12


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(input=x)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (Two(), "a constant belongs to one input"),
        (Applied(lambda x: {"scores": x.relu()}), "no dictionary or tuple"),
        (Applied(lambda x: (x.relu(), x)), "no dictionary or tuple"),
        (Applied(lambda _: torch.ones(2)), "one tensor that depends on the input"),
        (Keyword(), "or one by its name"),
    ],
)
def test_other_inputs_and_outputs_are_refused(model: nn.Module, remedy: str):
    with pytest.raises(UnsupportedError, match=remedy):
        lnn.lipschitzify(model)


def everyday() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Identity(), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        *(nn.Conv2d(4, 8, 3, 2, 1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_and_the_statistics_are_kept_apart(training: bool):
    """A conversion in training mode changes no statistics of the original, and the twin learns its own."""
    torch.manual_seed(0)
    model = everyday().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin, _ = lnn.lipschitzify(model)
    assert twin.training == training
    twin.train()(torch.rand(8, 1, 6, 6) + 3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert steepest(twin.double().eval(), (1, 1, 6, 6), points=1) <= 1 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_types(dtype: torch.dtype):
    torch.manual_seed(0)
    twin, _ = lnn.lipschitzify(everyday().to(dtype))
    twin = twin.eval().requires_grad_(False)
    x = torch.rand(2, 1, 6, 6, dtype=dtype)
    assert twin(x).dtype == dtype
    found = proven(twin, x[:1])
    # Bfloat16 keeps eight digits of a weight: its norm is proven as it is stored, and may exceed one by some 2^-8.
    assert found <= (1 + 1e-9 if dtype is torch.float64 else 1.05)
    # In float64 weights are computed anew, without the digits that bfloat16 takes away.
    assert steepest(twin.double(), (1, 1, 6, 6), points=1) <= 1 + 1e-12
