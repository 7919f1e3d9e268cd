"""The rounding error of logits, against arithmetic with more digits."""

from fractions import Fraction
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit import Bound, Kind
from lipkit import nn as lnn
from lipkit.certify import Forward
from lipkit.errors import ArgumentError, NeedsRegion, NonFiniteError, ShapeError, UnsupportedError
from lipkit.trace.nodes.declared import Declared


def exact_outputs(layers: list[nn.Linear], x: Tensor) -> list[Fraction]:
    """ReLU after every layer but the last, in rational arithmetic."""
    values = [Fraction(v) for v in x.double().tolist()]
    for number, layer in enumerate(layers):
        weight, bias = layer.weight.double().tolist(), layer.bias.double().tolist()
        values = [
            sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(b))
            for row, b in zip(weight, bias, strict=True)
        ]
        if number + 1 < len(layers):
            values = [max(v, Fraction(0)) for v in values]
    return values


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 9), st.floats(-8, 8), st.booleans())
def test_the_error_covers_rational_arithmetic(seed: int, depth: int, width: int, scale: float, narrow: bool) -> None:
    torch.manual_seed(seed)
    sizes = [3, *[width] * depth, 2]
    layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
    if narrow:
        model.float()
    x = torch.randn(4, 3, dtype=torch.float64) * 10.0**scale
    found = Forward(model, torch.zeros(1, 3, dtype=next(model.parameters()).dtype))(x)
    for point, value, error in zip(x, found.value.tolist(), found.error.tolist(), strict=True):
        for computed, truth in zip(value, exact_outputs(layers, point), strict=True):
            assert abs(Fraction(computed) - truth) <= Fraction(error)
    # Useful too: a few dozen roundings of the largest numbers on the way, not more.
    assert float((found.error / (1 + x.norm(dim=1))).max()) < 1e-10 * 3.0**depth


def test_errors_do_not_grow_with_orthogonal_depth() -> None:
    torch.manual_seed(0)
    parts = [part for _ in range(16) for part in (lnn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(*parts, nn.Linear(16, 3))
    found = Forward(model, torch.zeros(1, 16))(torch.randn(8, 16))
    # Absolute values would multiply by about 3 a layer: 1e7 in all. Norms add 16 errors of 16 roundings each.
    assert float(found.error.max()) < 1e-12


def test_declared_layers_are_trusted_to_half_of_their_digits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Linear(16, 16), lnn.MaxMin(), nn.Linear(16, 3))
    found = Forward(model, torch.zeros(1, 16))(torch.randn(8, 16))
    assert 1e-10 < float(found.error.max()) < 1e-6


class Average(nn.Module):
    """A sum whose terms cancel: 1e8 is added and taken away again."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 1e8) * 3.0 - 3e8


def test_cancellation_is_counted() -> None:
    x = torch.tensor([[0.1, 0.7]], dtype=torch.float64)
    found = Forward(Average(), x)(x)
    truth = [float(Fraction(v) * 3) for v in x[0].tolist()]
    off = max(abs(a - b) for a, b in zip(found.value[0].tolist(), truth, strict=True))
    assert off > 1e-9
    assert float(found.error[0]) >= off


def test_convolutions_against_long_doubles() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(3, 4))
    x = torch.randn(2, 2, 4, 4)
    found = Forward(model, x[:1])(x)
    padded = nn.functional.pad(x, (1, 1, 1, 1)).numpy().astype(np.longdouble)
    weight, bias = (t.detach().numpy().astype(np.longdouble) for t in (conv.weight, cast(Tensor, conv.bias)))
    hidden = np.zeros((2, 3, 4, 4), dtype=np.longdouble)
    for i in range(4):
        for j in range(4):
            window = padded[:, None, :, i : i + 3, j : j + 3]
            hidden[:, :, i, j] = (window * weight[None]).sum(axis=(2, 3, 4)) + bias
    pooled = np.maximum(hidden, 0).mean(axis=(2, 3))
    head = cast(nn.Linear, model[4])
    truth = pooled @ head.weight.detach().numpy().astype(np.longdouble).T + head.bias.detach().numpy()
    off = np.abs(found.value.numpy() - truth).max(axis=1)
    assert bool((off <= found.error.numpy()).all())
    assert float(found.error.max()) < 1e-12


def test_declared_layers_are_trusted_by_their_narrowest_numbers() -> None:
    promise = Bound.from_value(1.0, Kind.UPPER, "identity")

    def node(dtype: torch.dtype) -> Declared:
        return Declared(lambda z: (z.to(dtype) * 1).to(z.dtype), (4,), (4,), (), promise, "cast")

    # Of 4 entries, in units of 2^-53: 2^-30 and 2^-12 of the largest one each.
    assert node(torch.float64).roundings == 2.0**23 * 2
    assert node(torch.float32).roundings == 2.0**41 * 2
    with pytest.raises(UnsupportedError, match=r"computes in torch\.bfloat16"):
        _ = node(torch.bfloat16).roundings


class Product(nn.Module):
    """A weight that is computed from two others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(20, 20)), nn.Parameter(torch.randn(20, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a @ self.b)


def test_autocast_around_a_certificate_changes_nothing() -> None:
    torch.manual_seed(0)
    model, x = Product(), torch.randn(2, 20)
    plain = Forward(model, x[:1])(x)
    with torch.autocast("cpu", torch.bfloat16):
        cast = Forward(model, x[:1])(x)
    assert torch.equal(plain.value, cast.value)


class Length(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x.unflatten(1, (2, 3)), 3, dim=-1)


@pytest.mark.parametrize("scale", [1e-160, 1e-110, 1.0, 1e110, 1e160])
def test_norms_of_tiny_and_huge_vectors(scale: float) -> None:
    x = torch.tensor([[3.0, 4.0, 5.0, 1.0, 1.0, 0.0]], dtype=torch.float64) * scale
    found = Forward(Length(), x)(x)
    # 27 + 64 + 125 = 6^3.
    off = (found.value[0] / scale - torch.tensor([6.0, 2 ** (1 / 3)], dtype=torch.float64)).abs().max()
    assert float(off) <= float(found.error[0]) / scale + 1e-15
    assert float(off) < 1e-14


def test_what_it_cannot_do_is_said() -> None:
    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    with pytest.raises(NeedsRegion):
        Forward(Square(), torch.ones(1, 3))
    with pytest.raises(ShapeError, match="one axis of outputs"):
        Forward(nn.Conv2d(1, 1, 1), torch.ones(1, 1, 2, 2))
    forward = Forward(nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(ArgumentError, match="floating point"):
        forward(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(NonFiniteError, match="NaN or infinite outputs"):
        forward(torch.tensor([[float("inf"), 0.0]]))
