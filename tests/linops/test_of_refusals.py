"""What `of` refuses: modules it does not know or cannot trust, and shapes that do not fit them."""

import pytest
import torch
from torch import Tensor, nn

from lipkit import linops
from lipkit.errors import LipkitError, UnsupportedError
from lipkit.linops import Shape


class Doubled(nn.Linear):
    """A subclass that does not do what its base does."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Narrowed(nn.Conv1d):
    """A convolution that hides its change in a private method."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, 2 * weight, bias)


def hooked() -> nn.Module:
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda _module, _inputs, _output: torch.zeros(3))
    return module


def patched() -> nn.Module:
    module = nn.Linear(3, 3)
    module.forward = lambda input: 2 * input  # pyright: ignore[reportAttributeAccessIssue]
    return module


@pytest.mark.parametrize(
    ("module", "in_shape", "message"),
    [
        (nn.ReLU(), (3,), "There is no operator for ReLU on shape (3,); wrap it in LinearFunction"),
        (nn.LazyLinear(3), (3,), "LazyLinear is lazy and has no weights yet"),
        (nn.LazyConv2d(3, 2), (3, 4, 4), "LazyConv2d is lazy"),
        (hooked(), (3,), "Linear has forward hooks"),
        (patched(), (3,), "Linear has a forward of its own"),
        (Doubled(3, 3), (3,), "Doubled has a forward of its own"),
        (Narrowed(1, 1, 1), (1, 3), "Narrowed has a _conv_forward of its own"),
        (nn.BatchNorm1d(3), (3,), "BatchNorm1d in training mode is not a linear map; call .eval()"),
        (nn.BatchNorm1d(3, track_running_stats=False).eval(), (3,), "BatchNorm1d with track_running_stats=False"),
        (nn.Dropout(), (3,), "Dropout in training mode"),
        (nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()), (3,), "There is no operator for Sigmoid"),
    ],
    ids=str,
)
def test_refusals(module: nn.Module, in_shape: Shape, message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        linops.of(module, in_shape)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("module", "in_shape", "message"),
    [
        (nn.Linear(3, 2), (4,), "Linear expects (..., 3), got in_shape (4,)."),
        (nn.Linear(3, 2), (), "Linear expects (..., 3), got in_shape ()."),
        (nn.Conv2d(3, 2, 1), (3, 4), "Conv2d expects 3 channels and 2 spatial axes, got in_shape (3, 4)."),
        (nn.ConvTranspose1d(3, 2, 1), (2, 4), "ConvTranspose1d expects 3 channels and 1 spatial axes"),
        (nn.BatchNorm2d(3).eval(), (3,), "BatchNorm2d expects 3 axes, got in_shape (3,)."),
        (nn.BatchNorm1d(3).eval(), (4,), "BatchNorm on shape (4,) needs one variance for each channel"),
        (nn.AvgPool2d(2), (4, 4), "AvgPool2d expects channels and 2 spatial axes, got in_shape (4, 4)."),
        (nn.AdaptiveAvgPool1d(2), (4,), "AdaptiveAvgPool1d expects channels and 1 spatial axes"),
        (nn.AvgPool1d(5), (1, 4), "AvgPool1d does not accept inputs of shape (1, 4): "),
        (nn.Unflatten(1, (2, 2)), (6,), "Unflatten does not accept inputs of shape (6,): "),
        (nn.Flatten(0), (6,), "Flatten on (batch, *(6,)) touches the batch axis; leave axis 0 alone."),
        (nn.ReflectionPad1d(3), (1, 3), "Reflect padding must be smaller than the axis, got (3, 3) on length 3"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(module: nn.Module, in_shape: Shape, message: str) -> None:
    with pytest.raises(LipkitError) as caught:
        linops.of(module, in_shape)
    assert str(caught.value).startswith(message)
