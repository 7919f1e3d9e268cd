"""Transposed convolutions with circular borders: the adjoints of torch's circular convolutions, as dense matrices."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import materialize
from support.proven import proven
from support.unchecked import unchecked

TORCH = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
OURS = (lnn.ConvTranspose1d, lnn.ConvTranspose2d, lnn.ConvTranspose3d)
# Kernel, stride, padding, dilation, output padding and groups, for every axis alike; the length of an axis of an input.
WALKS = (
    (3, 1, 1, 1, 0, 1, 3),
    (3, 2, 1, 1, 1, 1, 2),
    (4, 2, 1, 1, 0, 2, 2),
    (5, 1, 1, 1, 0, 1, 3),
    (3, 3, 2, 2, 2, 1, 2),
)


def dense(layer: nn.Module, *shape: int) -> Tensor:
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return (layer(units) - layer(0 * units)).flatten(1).mT


def disturb(layer: nn.Module) -> None:
    raw = layer.get_parameter("parametrizations.weight.original")
    with torch.no_grad():
        raw.add_(torch.randn_like(raw))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_is_the_adjoint_of_the_circular_convolution_of_torch(rank: int, walk: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    kernel, stride, padding, dilation, rest, groups, length = walk
    layer: Any = OURS[rank - 1](
        4, 2, kernel, stride, padding, rest, groups, dilation=dilation, padding_mode="circular"
    ).double()
    disturb(layer)
    shape = (4, *(length,) * rank)
    out = tuple(layer(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
    twin: Any = TORCH[rank - 1](2, 4, kernel, stride, padding, dilation, groups, False, "circular").double()
    with torch.no_grad():
        twin.weight.copy_(layer.weight)
    expected = dense(twin, *out).mT
    assert out[1] == stride * (length - 1) + dilation * (kernel - 1) + 1 - 2 * padding + rest
    torch.testing.assert_close(dense(layer, *shape), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(materialize(layer.linear_operator(shape)), expected, rtol=0, atol=1e-14)
    values = torch.linalg.svdvals(expected)
    assert float(values[0]) <= 1 + 1e-12
    if layer.is_isometry:
        # Björck steps from random numbers end within 2e-5.
        assert float(values[-1]) >= 1 - 2e-5


@pytest.mark.parametrize("method", [lnn.AOC(), lnn.BCOP(), lnn.SOC()], ids=str)
@pytest.mark.parametrize(("stride", "rest"), [(1, 0), (2, 1)])
def test_is_an_isometry_where_the_convolution_is_one(method: lnn.WeightMethod, stride: int, rest: int) -> None:
    torch.manual_seed(0)
    layer = lnn.ConvTranspose2d(4, 4, 3, stride, 1, rest, padding_mode="circular", method=method).double()
    disturb(layer)
    assert layer.is_isometry
    values = torch.linalg.svdvals(dense(layer, 4, 3, 3))
    # The series of SOC loses up to 2.5e-6.
    assert 1 - 2e-5 <= float(values[-1]) <= float(values[0]) <= 1 + 1e-12


def test_bias_batches_and_copies() -> None:
    torch.manual_seed(0)
    layer: Any = lnn.ConvTranspose2d(4, 2, 3, 2, 1, 1, padding_mode="circular")
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, -2.0]))
    x = torch.randn(3, 4, 3, 3)
    y = layer(x)
    # Sums in another order.
    torch.testing.assert_close(layer(x[0]), y[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer(0 * x)[0, :, 0, 0], layer.bias)
    assert torch.equal(copy.deepcopy(layer)(x), y)
    plain = lnn.condense(layer)
    assert type(plain).__name__ == "SizedConvTranspose2d"
    torch.testing.assert_close(plain(x), y, rtol=1e-5, atol=1e-6)
    assert lnn.condense(layer, torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_whole_networks_are_bounded() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(lnn.ConvTranspose2d(4, 2, 3, 2, 1, 1, padding_mode="circular"), lnn.MaxMin())
    x = torch.zeros(1, 4, 3, 3)
    assert proven(model, x) <= 1
    # A weight that nothing constrains any more is measured on the operations that its forward is made of.
    plain: Any = lnn.condense(model)
    with torch.no_grad():
        plain[0].weight.mul_(3)
    truth = float(torch.linalg.svdvals(dense(plain[0].double(), 4, 3, 3))[0])
    assert truth * (1 - 1e-12) <= proven(plain, x.double()) <= 1.3 * truth


def test_geometries_without_such_a_layer_are_refused() -> None:
    def build(*walk: Any, mode: Any = "circular") -> nn.Module:
        return lnn.ConvTranspose2d(4, 4, *walk, padding_mode=mode)

    with pytest.raises(UnsupportedError, match=r"does not divide; use output_padding=\(1, 1\)"):
        build(3, 2, 1, 0)
    with pytest.raises(UnsupportedError, match="computed twice"):
        build(3, 1, 2)
    for mode in ("reflect", "replicate", "nothing"):
        with unchecked(), pytest.raises(ArgumentError, match="must be 'zeros' or 'circular'"):
            build(3, 1, 1, mode=mode)
    with pytest.raises(ShapeError, match="more than once"):
        lnn.ConvTranspose1d(2, 2, 5, padding=2, output_padding=0, padding_mode="circular")(torch.zeros(1, 2, 1))
    with pytest.raises(UnsupportedError, match="takes no output_size"):
        lnn.ConvTranspose1d(2, 2, 3, padding=1, padding_mode="circular")(torch.zeros(1, 2, 3), [3])
    # Without padding nothing is wrapped, and the layer is that of zero borders.
    torch.manual_seed(0)
    around = lnn.ConvTranspose1d(2, 2, 2, 2, padding_mode="circular")
    zeros = lnn.ConvTranspose1d(2, 2, 2, 2)
    zeros.load_state_dict(around.state_dict())
    x = torch.randn(1, 2, 3)
    torch.testing.assert_close(around(x), zeros(x))
