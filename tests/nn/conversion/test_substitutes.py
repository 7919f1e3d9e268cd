"""Substitutes of normalisations and functions: their constants by dense Jacobians, their values by closed forms."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.errors import ShapeError, UnsupportedError
from lipkit.nn.conversion.converted_functions import Clamp, Extreme, NearestUpsample, Sharpened
from lipkit.nn.conversion.converted_layers import ChannelScale, ScaledMean
from support.jacobians import norm_at, steepest

# Dense decompositions in float64 are off by some units of 2^-53.
ROUNDING = 1 + 1e-12


class Applied(nn.Module):
    """A function of the input alone."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def scaled(module: nn.Module) -> nn.Module:
    """With weights and biases that are not those of the start."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(3 * torch.randn_like(parameter))
    return module


torch.manual_seed(0)
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "group norm": (scaled(nn.GroupNorm(2, 4)), (1, 4, 3)),
    "group norm without weights": (nn.GroupNorm(2, 4, affine=False), (1, 4, 3)),
    "group norm of vectors": (scaled(nn.GroupNorm(1, 4)), (1, 4)),
    "rms norm": (scaled(nn.RMSNorm(5)), (1, 3, 5)),
    "rms norm without weights": (nn.RMSNorm(5, elementwise_affine=False), (1, 5)),
    "layer norm": (scaled(nn.LayerNorm(5)), (1, 3, 5)),
    "layer norm over two axes": (scaled(nn.LayerNorm([3, 5])), (1, 3, 5)),
    "layer norm without bias": (scaled(nn.LayerNorm(5, bias=False)), (1, 5)),
    "rms norm over two axes": (nn.RMSNorm([3, 5]), (1, 3, 5)),
    "upsample": (nn.Upsample(scale_factor=2), (1, 2, 3, 2)),
    "upsample by axes": (nn.Upsample(scale_factor=(3, 2)), (1, 1, 2, 2)),
    "interpolate": (Applied(lambda x: functional.interpolate(x, scale_factor=2)), (1, 2, 3)),
    "abs": (Applied(torch.abs), (1, 5)),
    "built-in abs": (Applied(abs), (1, 5)),
    "clamp": (Applied(lambda x: x.clamp(-0.5, 0.5)), (1, 5)),
    "clamp by name": (Applied(lambda x: torch.clamp(x, max=0.2)), (1, 5)),
    "clamp_min": (Applied(lambda x: x.clamp_min(0.1)), (1, 5)),
    "amax": (Applied(lambda x: x.amax(1)), (1, 5, 2)),
    "amax over axes": (Applied(lambda x: torch.amax(x, dim=(-1, 1), keepdim=True)), (1, 3, 2)),
    "amin": (Applied(lambda x: x.amin(-1)), (1, 5, 2)),
    "cat": (Applied(lambda x: torch.cat([x, x.abs(), x.relu()], 1)), (1, 4)),
    "cat by name": (Applied(lambda x: torch.cat(tensors=(x, -x), dim=-1)), (1, 4)),
    "number minus x": (Applied(lambda x: 1 - x), (1, 4)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("start", [lnn.ConversionStart.ISOMETRY, lnn.ConversionStart.WEIGHTS], ids=str)
def test_the_constant_is_one(name: str, start: lnn.ConversionStart):
    module, shape = CASES[name]
    x = torch.randn(2, *shape[1:])
    twin, _ = lnn.lipschitzify(module, start=start)
    assert twin(x).shape == module(x).shape
    assert steepest(twin.double().eval(), shape, points=3) <= ROUNDING


def test_upsampling_is_the_one_of_torch_over_its_constant():
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    expected = functional.interpolate(x, scale_factor=(2, 3)) / math.sqrt(6)
    # Factors are made smaller by 2^-22.
    assert torch.allclose(NearestUpsample((2, 3))(x), expected, rtol=1e-6)
    assert norm_at(NearestUpsample((2, 3)), x[:1, :1, :2, :2]) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("sharpness", [1e-9, 0.03, 1.0, 20.0, 1e9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_sharper_activations_keep_their_constant(sharpness: float, dtype: torch.dtype):
    module = Sharpened(lnn.GELU(), sharpness).to(dtype)
    line = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    held = module.double()
    found = held(line).detach()
    slopes = (found[1:] - found[:-1]) / (line[1:] - line[:-1])
    # Differences of size 2e-3 in float64.
    assert float(slopes.abs().max()) <= 1 + 1e-11


def test_sharpness_scales_both_axes():
    x = torch.randn(50, dtype=torch.float64)
    module = Sharpened(lnn.SiLU(), 8.0).double()
    # The margin for rounding is 2^-20.
    assert torch.allclose(module(x), lnn.SiLU()(8 * x) / 8, rtol=1e-5)


def test_the_factors_of_a_sharpness_do_not_multiply_to_more_than_one():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for sharpness in torch.linspace(0.2, 60, 500).tolist():
            module = Sharpened(lnn.Softplus(), sharpness).to(dtype)
            whole = torch.tensor(2.0**20 if dtype is not torch.float16 else 2.0**8, dtype=dtype)
            # Far to the right softplus is the identity: the product of both factors, times a power of two.
            assert float(module.double()(whole.double()).detach()) <= float(whole)


def test_weights_keep_a_smooth_function_up_to_a_factor():
    """Orthogonal layers and GELU: s GELU(x / s) with the right s is the original function times s."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)).double()
    for layer, size in ((model[0], 3.0), (model[2], 0.5)):
        assert isinstance(layer, nn.Linear)
        layer.weight.data.copy_(size * nn.init.orthogonal_(torch.empty(4, 4)).double())
    twin, _ = lnn.lipschitzify(model, start=lnn.ConversionStart.WEIGHTS)
    x = torch.randn(64, 4).double()
    ratio = twin(x) / model(x)
    # Weights shrink by 2^-39, factors by 2^-20.
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-4)


class Token(nn.Module):
    """A class token in front of the patches, as vision transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.first = nn.Linear(4, 4)
        self.mix = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), self.first(x)), dim=1)
        return self.mix(x.transpose(1, 2))[..., 0]


@pytest.mark.parametrize("start", lnn.ConversionStart, ids=str)
def test_a_class_token_costs_nothing(start: lnn.ConversionStart):
    torch.manual_seed(0)
    model = Token()
    twin, report = lnn.lipschitzify(model, start=start)
    assert any("constants" in row.now for row in report.rows)
    assert steepest(twin.double().eval(), (1, 2, 4), points=2) <= ROUNDING
    twin(torch.ones(2, 2, 4).double()).sum().backward()
    token = twin.body.get_parameter("token")
    assert token.grad is not None
    assert float(token.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (lambda x: x.max(1)[0], "use amax"),
        (lambda x: x.amax(0), "other axes than the batch"),
        (lambda x: x.amax(), "other axes than the batch"),
        (lambda x: x.clamp(min=x.mean(1, keepdim=True)), "several tensors"),
        (lambda x: functional.interpolate(x[:, None], scale_factor=1.5), "whole scale factors"),
        (lambda x: functional.interpolate(x[:, None], size=9), "whole scale factors"),
        (lambda x: torch.cat([x, torch.zeros_like(x)], 1), "no known constant"),
        (lambda x: x * x.shape[1], "only by a number"),
    ],
)
def test_what_has_no_constant_is_refused_with_a_remedy(function: Callable[[Tensor], Tensor], remedy: str):
    with pytest.raises(UnsupportedError, match=remedy):
        lnn.lipschitzify(Applied(function))


@pytest.mark.parametrize("module", [Extreme((-2,)), ScaledMean(-2)], ids=["amax", "mean"])
def test_axes_that_turn_out_to_be_the_batch_are_refused(module: nn.Module):
    with pytest.raises(ShapeError, match="contain the batch"):
        module(torch.ones(3, 2))


def test_factors_of_channels_are_clipped():
    module = ChannelScale(torch.tensor([5.0, -7.0, 0.5]), bias=torch.ones(3))
    assert torch.equal(module(torch.ones(1, 3)), torch.tensor([[2.0, 0.0, 1.5]]))
    assert torch.equal(Clamp(None, 0.5)(torch.tensor([-9.0, 9.0])), torch.tensor([-9.0, 0.5]))
