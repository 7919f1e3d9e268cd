"""Layers with kernels from Fourier space: projected, batched, condensed, read as operators, and what they refuse."""

from typing import Any

import pytest
import torch
from torch import nn

import lipkit
from lipkit import certify
from lipkit import nn as lnn
from lipkit.bound import Kind
from lipkit.bounds import DAG
from lipkit.bounds.lipschitz import network_of
from lipkit.errors import ArgumentError, LipkitError, ShapeError, UnsupportedError
from lipkit.linops import CircularConv, factors
from lipkit.trace.capture import capture
from support.layers.checks import singular_values
from support.layers.fourier_layers import every_kind, layer_of, raw_of


@every_kind
def test_projecting_changes_no_weight_and_a_second_time_no_number(kind: Any) -> None:
    torch.manual_seed(0)
    layer = layer_of(kind((4, 4)), 3, 3)
    with torch.no_grad():
        raw_of(layer).mul_(7.5)
    before = layer.weight.detach().clone()
    lnn.project(layer)
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=1e-6)
    once = raw_of(layer).detach().clone()
    lnn.project(layer)
    assert torch.equal(raw_of(layer), once)


@every_kind
def test_layers_of_one_kind_are_computed_together(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer_of(kind((4, 4)), 2, 2) for _ in range(3)))
    x = torch.randn(2, 2, 4, 4)
    expected = model(x)
    with lnn.batched(model):
        # The same products in another batch.
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@every_kind
def test_models_are_read_as_operators(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        layer_of(kind((4, 4)), 3, 4), lnn.MaxMin(), layer_of(kind((4, 4)), 4, 4), nn.Flatten(), lnn.Linear(64, 5)
    )
    x = torch.randn(2, 3, 4, 4)
    bound = lipkit.lipschitz(model, x)
    assert bound.kind is Kind.UPPER
    # Room for rounding in three layers.
    assert 1 - 1e-4 <= float(bound.value.detach()) <= 1 + 1e-9
    network = capture(model, x)
    leaves = [leaf for op in network.blocks.values() for leaf in factors(op)]
    assert sum(isinstance(leaf, CircularConv) for leaf in leaves) == 2
    for other in (lnn.condense(model), lnn.Sequential(*model)):
        assert float(DAG()(network_of(other, x)).value.detach()) <= 1 + 1e-9
    wide = model.to(torch.float64)
    logits = certify.Forward(wide, x.double())(x.double())
    assert float(logits.error.max()) < 1e-5
    assert bool(((logits.value - wide(x.double())).norm(dim=1) <= 2 * logits.error + 1e-12).all())


def test_the_declared_constant_is_exact_and_the_norm_of_an_operator_too() -> None:
    torch.manual_seed(0)
    layer = layer_of(lnn.FourierCayley((4, 4)), 3, 3)
    found = lipkit.spectral_norm(layer, (3, 4, 4))
    assert found.kind is Kind.EXACT
    truth = float(singular_values(layer, (3, 4, 4))[0])
    # The slack of the symbol in float64.
    assert truth <= float(found.value.detach()) <= truth * (1 + 1e-10)


@every_kind
def test_few_digits_are_proven(kind: Any) -> None:
    torch.manual_seed(0)
    layer = layer_of(kind((4, 4)), 3, 3)
    x = torch.randn(2, 3, 4, 4)
    for dtype in (torch.bfloat16, torch.float16):
        plain = lnn.condense(layer, dtype)
        y = plain(x.to(dtype))
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), layer(x), rtol=0.02, atol=0.05)
        assert float(lipkit.spectral_norm(plain, (3, 4, 4)).value.detach()) <= 1


REFUSED: list[tuple[dict[str, Any], type[LipkitError], str]] = [
    ({"stride": 2, "padding": 1}, UnsupportedError, "SpaceToDepth"),
    ({"padding_mode": "zeros"}, UnsupportedError, "ZeroPad2d"),
    ({"padding": 0}, UnsupportedError, r"pad by \(2, 2\) in all"),
]


@every_kind
def test_what_is_not_covered_is_refused_with_a_remedy(kind: Any) -> None:
    method = kind((4, 4))
    for others, error, words in REFUSED:
        with pytest.raises(error, match=words):
            layer_of(method, 2, 2, **others)
    with pytest.raises(UnsupportedError, match="for matrices"):
        lnn.Linear(4, 4, method=method)
    with pytest.raises(UnsupportedError, match="a transposed convolution is none"):
        lnn.ConvTranspose2d(2, 2, 3, method=method)
    with pytest.raises(UnsupportedError, match=r"kernel \(3,\) is none"):
        lnn.Conv1d(2, 2, 3, padding=1, padding_mode="circular", method=method)
    with pytest.raises(UnsupportedError, match=r"use lipkit.nn.Conv2d"):
        lnn.parametrize(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), "weight", method)
    layer = layer_of(method, 2, 2)
    for model in (layer, lnn.condense(layer)):
        with pytest.raises(ShapeError, match=r"made for images of size \(4, 4\), got \(4, 5\)"):
            model(torch.randn(1, 2, 4, 5))
        with pytest.raises(ArgumentError, match="takes inputs of that type"):
            model(torch.randn(1, 2, 4, 4, dtype=torch.float64))


def test_arguments_that_make_no_sense_are_refused() -> None:
    for size in ((), (0, 4), (2, 2, 2, 2)):
        with pytest.raises(ArgumentError, match="in_size must be a tuple"):
            lnn.LOT(size)
    with pytest.raises(ArgumentError, match=r"LOT.steps must be at least 1, got 0"):
        lnn.LOT((4,), steps=0)
    with pytest.raises(ArgumentError, match=r"BRO.rank must be at least 1, got 0"):
        lnn.BRO((4,), rank=0)
    with pytest.raises(ArgumentError, match=r"BRO.rank must be at most the number of channels of a group, 2, got 3"):
        layer_of(lnn.BRO((4,), rank=3), 4, 4, groups=2)
