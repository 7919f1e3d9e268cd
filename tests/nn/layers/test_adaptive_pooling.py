"""Adaptive and global pooling, and padding by border entries: constants by dense SVD, norms that are kept."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError
from support.unchecked import unchecked

F64 = torch.float64


def matrix(layer: nn.Module, *shape: int) -> Tensor:
    return torch.func.jacrev(layer)(torch.zeros(shape, dtype=F64)).reshape(-1, int(np.prod(shape)))


@settings(max_examples=80)
@given(st.integers(1, 13), st.integers(1, 13))
def test_sums_over_torch_s_windows(length: int, count: int) -> None:
    found = matrix(lnn.AdaptiveAvgPool(count, dims=1), 1, length)
    mean = matrix(nn.AdaptiveAvgPool1d(count), 1, length)
    members = (mean > 0).double()
    lengths, covers = members.sum(1, keepdim=True), members.sum(0)
    torch.testing.assert_close(found, members / (lengths * covers).sqrt(), rtol=1e-12, atol=0)
    values = torch.linalg.svdvals(found)
    assert float(values[0]) <= 1 + 1e-14
    if length % count == 0:
        # Windows of one size: orthonormal rows, but for the last digits of a root.
        torch.testing.assert_close(found @ found.mT, torch.eye(count, dtype=F64), rtol=0, atol=1e-14)


@settings(max_examples=40)
@given(st.integers(1, 3), st.data())
def test_adaptive_norms_keep_the_norm(dims: int, data: st.DataObject) -> None:
    draw = st.integers(1, 6)
    shape, size = (tuple(data.draw(draw) for _ in range(dims)) for _ in range(2))
    pool = lnn.AdaptiveL2NormPool(size, dims=dims)
    x, y = torch.randn(2, 5, 2, *shape, dtype=F64)
    image = pool(x)
    assert image.shape == (5, 2, *size)
    torch.testing.assert_close(image.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1), rtol=1e-12, atol=0)
    moved = (image - pool(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert float(moved.max()) <= 1 + 1e-12
    # One entry in a window of its own makes the bound sharp.
    single = torch.zeros(1, *shape, dtype=F64)
    single.view(-1)[0] = 1.0
    torch.testing.assert_close((pool(single) - pool(2 * single)).norm(), torch.ones((), dtype=F64), rtol=1e-12, atol=0)


def test_divided_sizes_agree_with_windows_of_one_size() -> None:
    x = torch.randn(2, 3, 8, 6, dtype=F64)
    torch.testing.assert_close(lnn.AdaptiveAvgPool((4, 3))(x), lnn.ScaledAvgPool2d(2)(x), rtol=1e-6, atol=0)
    torch.testing.assert_close(lnn.AdaptiveL2NormPool((4, 3))(x), lnn.L2NormPool2d(2)(x), rtol=1e-6, atol=0)
    torch.testing.assert_close(lnn.AdaptiveAvgPool(1)(x), lnn.GlobalAvgPool()(x), rtol=1e-6, atol=0)
    torch.testing.assert_close(lnn.AdaptiveL2NormPool(1)(x), lnn.GlobalL2NormPool()(x), rtol=1e-6, atol=0)


def test_global_norms() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=F64)
    torch.testing.assert_close(lnn.GlobalL2NormPool(keepdim=False)(x), x.flatten(2).norm(dim=2))
    zero = torch.zeros(1, 2, 3, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(lnn.GlobalL2NormPool()(zero).sum(), zero)
    assert float(gradient.abs().max()) == 0


@pytest.mark.parametrize("border", lnn.Border)
@settings(max_examples=30)
@given(st.data())
def test_border_padding_is_an_isometry(border: lnn.Border, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(2, 6)) for _ in range(2))
    padding = tuple(data.draw(st.integers(0, min(n - 1, 3))) for n in shape)
    found = matrix(lnn.BorderPad(padding, border), *shape)
    gram = found.mT @ found
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=F64), rtol=0, atol=1e-14)
    assert float(torch.linalg.svdvals(found)[0]) <= 1 + 1e-14


NUMPY = {
    lnn.Border.REFLECT: "reflect",
    lnn.Border.SYMMETRIC: "symmetric",
    lnn.Border.REPLICATE: "edge",
    lnn.Border.CIRCULAR: "wrap",
}


@pytest.mark.parametrize("border", lnn.Border)
def test_borders_are_those_of_numpy(border: lnn.Border) -> None:
    for length, padding in itertools.product(range(2, 6), range(1, 4)):
        if padding >= length:
            continue
        row = np.arange(length)
        assert border.places(length, padding) == np.pad(row, padding, mode=NUMPY[border]).tolist()  # pyright: ignore[reportArgumentType, reportCallIssue] - modes are literals


@pytest.mark.parametrize("border", ["reflect", "replicate"])
def test_plain_border_padding_exceeds_the_norm_of_its_kernel(border: str) -> None:
    """What peers accept: an orthogonal kernel with such padding has a norm of 1.4 at least; ours refuses, or weighs."""
    torch.manual_seed(0)
    kernel = torch.zeros(2, 2, 3, dtype=F64)
    kernel[..., 0] = torch.linalg.qr(torch.randn(2, 2, dtype=F64)).Q
    plain = nn.Conv1d(2, 2, 3, padding=1, padding_mode=border, bias=False).double()  # pyright: ignore[reportArgumentType] - one of two literals
    weighed = nn.Sequential(lnn.BorderPad(1, lnn.Border(border), dims=1), nn.Conv1d(2, 2, 3, bias=False).double())
    with torch.no_grad():
        plain.weight.copy_(kernel)
        weighed.get_parameter("1.weight").copy_(kernel)
    norms = [float(torch.linalg.svdvals(matrix(model, 2, 7).detach())[0]) for model in (plain, weighed)]
    assert norms[0] > 1.4
    assert norms[1] <= 1 + 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_rounded_down(dtype: torch.dtype) -> None:
    for layer, shape in ((lnn.AdaptiveAvgPool(3, dims=1), (1, 5)), (lnn.BorderPad(1, dims=1), (1, 5))):
        columns = [layer(unit.reshape(shape).to(dtype)).double().flatten() for unit in torch.eye(5)]
        # Sums over windows of two or three are rounded again, by half a unit; the weights alone are below one.
        assert float(torch.linalg.svdvals(torch.stack(columns))[0]) <= 1 + 2 * torch.finfo(dtype).eps


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="dims"):
        lnn.AdaptiveAvgPool(2, dims=4)
    with pytest.raises(ArgumentError, match="at least 1"):
        lnn.AdaptiveL2NormPool(0)
    with pytest.raises(ShapeError, match="pools 2 axes"):
        lnn.AdaptiveAvgPool(2)(torch.zeros(3))
    with pytest.raises(ShapeError, match="longer rows"):
        lnn.BorderPad(3, lnn.Border.REFLECT)(torch.zeros(3, 3))
    with pytest.raises(ArgumentError, match="at least 0"):
        lnn.BorderPad(-1)
    name: Any = "reflect"
    with unchecked(), pytest.raises(ArgumentError, match=r"such as Border.REFLECT, got 'reflect'"):
        lnn.BorderPad(1, name)


def test_border_padding_of_long_and_of_empty_rows():
    # Copies were counted for each entry by a pass over all: hours for a signal of this length.
    signal = torch.ones(1, 1, 10**6)
    assert float(lnn.BorderPad(3, dims=1)(signal).square().sum()) == pytest.approx(10**6, rel=1e-5)
    for border in lnn.Border:
        with pytest.raises(ShapeError, match="longer rows than 0"):
            lnn.BorderPad(3, border, dims=1)(torch.ones(1, 1, 0))
