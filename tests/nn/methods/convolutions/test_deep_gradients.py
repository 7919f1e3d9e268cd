"""Gradients through fifty orthogonal convolutions, as started and after steps of training."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.nn.methods.fourier._base import FourierMethod

SIDE = 5
SIZE = (SIDE, SIDE)


def layer(method: lnn.WeightMethod | None) -> nn.Module:
    """A convolution and sorted pairs; a block of moved pixels without a method."""
    if method is None:
        return lnn.ShiftBlock(8)
    convolution = lnn.Conv2d(6, 6, 3, padding=1, padding_mode="circular", method=method)
    return nn.Sequential(convolution, lnn.MaxMin())


def deep(method: lnn.WeightMethod | None, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer(method) for _ in range(50))).to(dtype)


def kept(model: nn.Module, x: Tensor) -> Tensor:
    """||J'v|| / ||v|| for each image."""
    x = x.clone().requires_grad_()
    out = model(x)
    v = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, x, v)
    return gradient.flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)


@pytest.mark.train
# In float32 each layer gives up 4e-7 (`BRO`) to 9e-7 (`LOT`) of its norm to make room for rounding: 2e-5 to 5e-5 in
# fifty layers, and rounding itself. In float64 that room is 2e-11 at most.
@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 1 - 1e-9), (torch.float32, 1 - 1e-4)], ids=str)
@pytest.mark.parametrize(
    "method",
    [lnn.BCOP(), lnn.AOC(), lnn.SOC(), lnn.LOT(SIZE), lnn.BRO(SIZE), lnn.FourierCayley(SIZE), None],
    ids=lambda method: str(method or "ShiftBlock"),
)
def test_a_gradient_comes_through_fifty_layers(
    method: lnn.WeightMethod | None, dtype: torch.dtype, least: float
) -> None:
    model, x = deep(method, dtype), torch.randn(4, 8 if method is None else 6, *SIZE, dtype=dtype)
    if isinstance(method, lnn.SOC):
        # Eight terms of its series lose t^10 / (8! 10) of each singular value, at most 2.5e-6 for |t| <= 1.
        least -= 50 / (math.factorial(8) * 10)
    # One for a map that keeps norms, which rounding in float32 may exceed by some units.
    # Kernels in Fourier space take several times as long.
    for _ in range(2 if isinstance(method, FourierMethod) else 4):
        found = kept(model, x)
        assert least <= float(found.min()) <= float(found.max()) <= 1 + 1e-5
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        model(x)[:, 0].square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
