"""Sandwich layers: every pattern of slopes by brute force, the published layer, numbers as stored, refusals."""

import itertools
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Metric
from lipkit.errors import ArgumentError, MetricError, ShapeError, UnsupportedError
from lipkit.linops import materialize
from lipkit.nn.residual.sandwich import _scales  # pyright: ignore[reportPrivateUsage]
from support.layers.geometries import FILLS, filled
from support.proven import proven
from support.unchecked import unchecked

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def parts(layer: lnn.Sandwich) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and the products of both scales, in float64, of the numbers as they are stored."""
    weight = cast(Tensor, layer.joint.weight).detach()
    down, up = _scales(layer.log_psi.detach(), weight.dtype)
    outer, inner = weight.double().split((layer.out_size, layer.in_size), 1)
    return outer, inner, up.double() * down.double()


def steepest(layer: lnn.Sandwich) -> float:
    """The largest norm of A' diag(u d D) B over all D of zeros and ones, where a convex function is largest."""
    outer, inner, product = parts(layer)
    found = 0.0
    for pattern in itertools.product((0.0, 1.0), repeat=len(product)):
        slopes = torch.tensor(pattern, dtype=torch.float64) * product
        found = max(found, float(torch.linalg.matrix_norm(outer.mT @ (slopes[:, None] * inner), 2)))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", sorted(FILLS))
@pytest.mark.parametrize("method", [lnn.Cayley(), lnn.Bjorck(), lnn.Spectral()], ids=str)
def test_every_pattern_of_slopes_keeps_the_constant(method: lnn.WeightMethod, fill: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = lnn.Sandwich(4, 3, 5, method=method)
    filled(layer.joint, fill)
    with torch.no_grad():
        layer.log_psi.copy_(torch.tensor([0.0, 3.0, -50.0, 1e30, -1e-40]))
    layer = layer.to(dtype)
    # The dense decomposition is off by some units of 2^-53.
    assert steepest(layer) <= layer.gain * (1 + 1e-13)
    if dtype != torch.bfloat16:
        assert layer.gain == 1
    x = torch.randn(2, 4, dtype=dtype)
    y = layer(x)
    gradients = torch.autograd.grad(y.float().square().sum(), list(layer.parameters()))
    assert bool(torch.isfinite(y).all())
    assert all(bool(torch.isfinite(g).all()) for g in gradients)


def test_the_constant_is_reached() -> None:
    """A = B = I / 2^(1/2) and slopes of one: 2 A' B = I."""
    layer = lnn.Sandwich(3, 3, method=lnn.Spectral(steps=12)).double()
    with torch.no_grad():
        layer.joint.get_parameter("parametrizations.weight.original").copy_(torch.eye(3).repeat(1, 2))
    # Gram steps leave an excess of 3^(2^-13), that is 1.3e-4, which the constant has twice.
    assert 1 - 4e-4 < steepest(layer) <= 1


def test_the_layer_of_the_paper() -> None:
    """Z = W - W' + V'V, A' = (I + Z)^-1 (I - Z), B' = -2 V (I + Z)^-1, and the formula, all written out."""
    torch.manual_seed(1)
    layer = lnn.Sandwich(4, 3).double()
    raw = layer.joint.get_parameter("parametrizations.weight.original").detach()
    with torch.no_grad():
        layer.log_psi.normal_()
        assert layer.bias is not None
        layer.bias.normal_()
    w, v = raw.mT[:3], raw.mT[3:]
    eye = torch.eye(3, dtype=torch.float64)
    z = w - w.mT + v.mT @ v
    inverse = torch.linalg.inv(eye + z)
    a, b = (inverse @ (eye - z)).mT, (-2 * v @ inverse).mT
    torch.testing.assert_close(a @ a.mT + b @ b.mT, eye, rtol=0, atol=1e-14)
    psi = (8 * torch.tanh(layer.log_psi.detach() / 8)).exp()
    x = torch.randn(6, 4, dtype=torch.float64)
    expected = 2**0.5 * (psi * torch.relu(2**0.5 / psi * (x @ b.mT) + layer.bias.detach())) @ a
    # Weights are smaller by 2^-39 so that rounding has room, and count twice.
    torch.testing.assert_close(layer(x).detach(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (lnn.SandwichConv(2, 3, 3), (2, 5, 4)),
        (lnn.SandwichConv(3, 2, 3, 4, dilation=2, padding_mode="circular", rank=1, method=lnn.Spectral()), (3, 7)),
        (lnn.SandwichConv(1, 2, 3, rank=3, activation=nn.Tanh()), (1, 3, 3, 2)),
    ],
    ids=lambda one: str(one)[:30],
)
def test_convolutions_are_the_dense_layer_of_their_matrices(layer: lnn.SandwichConv, in_shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    joint = (layer.in_size + layer.out_size, *in_shape[1:])
    weight = cast(Tensor, layer.joint.weight).detach()
    matrix = materialize(layer.geometry.operator(weight, joint)).detach()
    assert float(torch.linalg.matrix_norm(matrix, 2)) <= 1 + 1e-13
    pixels = matrix.shape[1] // joint[0]
    outer, inner = matrix.split((layer.out_size * pixels, layer.in_size * pixels), 1)
    down, up = (one.repeat_interleave(pixels) for one in _scales(layer.log_psi.detach(), torch.float64))
    assert layer.bias is not None
    bias = layer.bias.detach().repeat_interleave(pixels)
    x = torch.randn(2, *in_shape, dtype=torch.float64)
    expected = (layer.activation(x.flatten(1) @ inner.mT * down + bias) * up) @ outer
    torch.testing.assert_close(layer(x).detach().flatten(1), expected, rtol=1e-12, atol=1e-12)
    jacobian = torch.func.jacrev(lambda z: layer(z[None])[0])(x[0]).detach().reshape(expected.shape[1], -1)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= 1 + 1e-13


@pytest.mark.parametrize("layer", [lnn.Sandwich(4, 3), lnn.SandwichConv(2, 3, 3)], ids=["dense", "convolution"])
def test_captures_have_the_declared_constant_also_condensed(layer: nn.Module) -> None:
    torch.manual_seed(3)
    x = torch.randn(1, 4) if isinstance(layer, lnn.Sandwich) else torch.randn(1, 2, 5, 5)
    # The number is rounded up along the way.
    assert 1 <= proven(layer, x) <= 1 + 1e-12
    plain = lnn.condense(layer)
    # Weights are no longer known to come from a method, so their norm is measured, with a slack of 1e-6.
    assert proven(plain, x) <= 1 + 1e-5
    half = lnn.condense(layer, torch.bfloat16)
    assert isinstance(half, lnn.Sandwich | lnn.SandwichConv)
    bound = half.declared_lipschitz(tuple(x.shape[1:]))
    assert bound.kind.certifies
    assert float(bound.value.detach()) <= 1 + 1e-5


def test_the_constant_holds_while_training() -> None:
    torch.manual_seed(4)
    layer = lnn.Sandwich(4, 3, 6)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    for _ in range(20):
        # A loss that rewards large outputs.
        (-layer(3 * torch.randn(16, 4)).square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert steepest(layer) <= 1 + 1e-13


def test_numbers_are_drawn_later() -> None:
    layer = lnn.Sandwich(4, 3, device=torch.device("meta"))
    assert layer(torch.empty(2, 4, device="meta")).shape == (2, 3)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert 0 < steepest(layer) <= 1 + 1e-13
    assert float(layer.log_psi.detach().abs().max()) == 0
    plain = lnn.condense(layer)
    assert isinstance(plain, lnn.Sandwich)
    with pytest.raises(UnsupportedError, match="build a new layer"):
        plain.reset_parameters()


def test_bad_arguments() -> None:
    with pytest.raises(UnsupportedError, match="about 3"):
        lnn.Sandwich(3, 3, activation=nn.GELU())
    with pytest.raises(ArgumentError, match="got 0 and 3"):
        lnn.Sandwich(0, 3)
    with unchecked(), pytest.raises(ArgumentError, match="no place for a method"):
        lnn.Sandwich(3, 3, 3, cast(bool, lnn.Bjorck()))
    with pytest.raises(ArgumentError, match="odd kernel"):
        lnn.SandwichConv(2, 2, 4)
    # Their weights mean nothing to a plain convolution: as kernels of A and B they gave constants near 2.
    for method in (lnn.SOC(), lnn.LOT((5, 5)), lnn.BRO((5, 5)), lnn.FourierCayley((5, 5))):
        with pytest.raises(UnsupportedError, match=r"not applied as a plain convolution.*use AOC\(\)"):
            lnn.SandwichConv(2, 3, 3, padding_mode="circular", method=method)
    with pytest.raises(UnsupportedError, match="reflect"):
        lnn.SandwichConv(2, 2, 3, padding_mode="reflect")
    with pytest.raises(MetricError, match="nothing in l2"):
        lnn.Sandwich(3, 3, method=lnn.UnitLines(Metric(1.0, 1.0)))
    with pytest.raises(ShapeError, match="takes one input of shape"):
        lnn.Sandwich(3, 2).declared_lipschitz((4,))
