"""Orthogonal convolutions in Fourier space, against dense matrices, decompositions and the convolution of torch."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.linops import CircularConv, Padding
from lipkit.nn.core.geometry import Geometry
from support.layers.checks import singular_values
from support.layers.fourier_layers import every_kind, layer_of, raw_of
from support.layers.geometries import FILLS, filled


def symbols(raw: Tensor, size: tuple[int, ...], left: int) -> dict[tuple[int, ...], Tensor]:
    """sum_t raw[t] e^(2 pi i f.(t - left) / size) at every frequency f, tap by tap, in complex128."""
    found = {}
    for f in product(*(range(n) for n in size)):
        total = torch.zeros(raw.shape[:2], dtype=torch.complex128)
        for t in product(*(range(k) for k in raw.shape[2:])):
            turns = sum(a * (b - left) / n for a, b, n in zip(f, t, size, strict=True))
            total += raw[(..., *t)].to(torch.complex128) * complex(
                math.cos(2 * math.pi * turns), math.sin(2 * math.pi * turns)
            )
        found[f] = total
    return found


def kernel_from(found: dict[tuple[int, ...], Tensor], size: tuple[int, ...]) -> Tensor:
    """The complex inverse transform of all matrices, by its definition."""
    some = next(iter(found.values()))
    kernel = torch.zeros((*some.shape, *size), dtype=torch.complex128)
    for t in product(*(range(n) for n in size)):
        for f, matrix in found.items():
            angle = -2 * math.pi * sum(a * b / n for a, b, n in zip(f, t, size, strict=True))
            kernel[(..., *t)] += matrix * complex(math.cos(angle), math.sin(angle)) / math.prod(size)
    return kernel


def polar(symbol: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(symbol, full_matrices=False)
    return left @ right


def cayley(symbol: Tensor) -> Tensor:
    if symbol.shape[0] < symbol.shape[1]:
        return cayley(symbol.mH).mH
    n = symbol.shape[1]
    upper, lower = symbol[:n], symbol[n:]
    skew = upper - upper.mH + lower.mH @ lower
    identity = torch.eye(n, dtype=symbol.dtype)
    solved = torch.linalg.inv(identity + skew)
    return torch.cat([solved @ (identity - skew), -2 * lower @ solved])


def reflector(symbol: Tensor) -> Tensor:
    basis, _ = torch.linalg.qr(symbol)
    return torch.eye(len(symbol), dtype=symbol.dtype) - 2 * basis @ basis.mH


ORACLES = {lnn.LOT: polar, lnn.FourierCayley: cayley, lnn.BRO: reflector}


@every_kind
@pytest.mark.parametrize(("c_in", "c_out"), [(3, 3), (2, 4), (4, 2), (1, 1)])
@pytest.mark.parametrize("size", [(4, 4), (5, 3), (6,), (1, 4)], ids=str)
def test_each_frequency_is_what_the_paper_says(kind: Any, c_in: int, c_out: int, size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = layer_of(kind(size), c_in, c_out).to(torch.float64)
    raw = raw_of(layer)
    with torch.no_grad():
        # Far from singular: the iteration of LOT arrives, and the reflectors of BRO need no regularisation.
        raw.add_(0.05 * torch.randn_like(raw))
    found = {f: ORACLES[kind](s) for f, s in symbols(raw.detach(), size, 1).items()}
    expected = kernel_from(found, size)
    # The symbol of a real kernel is conjugate at f and -f, and so is what is made of it: nothing imaginary is left.
    assert expected.imag.abs().max() <= 1e-14
    # BRO regularises by 2^-36, relative to squared singular values of about 1e-3; the others round.
    tolerance = 1e-6 if kind is lnn.BRO else 1e-9
    torch.testing.assert_close(layer.weight.detach(), expected.real[:c_out, :c_in], rtol=0, atol=tolerance)


@every_kind
def test_the_layer_is_the_convolution_of_torch_and_its_operator(kind: Any) -> None:
    torch.manual_seed(0)
    layer = layer_of(kind((4, 6)), 4, 6, groups=2).to(torch.float64)
    filled(layer, "normal")
    nn.init.normal_(layer.bias)
    x = torch.randn(3, 4, 4, 6, dtype=torch.float64)
    around = functional.pad(x, (0, 5, 0, 3), mode="circular")
    expected = functional.conv2d(around, layer.weight, layer.bias, groups=2)
    # Sums of 2 * 24 products in two orders.
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(layer(x[0]), expected[0], rtol=0, atol=1e-13)
    operator = layer.linear_operator((4, 4, 6))
    assert isinstance(operator, CircularConv)
    torch.testing.assert_close(operator.apply(x) + layer.bias[:, None, None], expected, rtol=0, atol=1e-13)


@every_kind
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_holds_for_all_free_numbers(kind: Any, fill: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for c_in, c_out in ((4, 4), (2, 5)):
        layer = layer_of(kind((4, 4)), c_in, c_out).to(dtype)
        filled(layer, fill)
        values = singular_values(layer, (c_in, 4, 4))
        # The decomposition itself may be high by 64 units.
        assert float(values[0]) <= 1 + 64 * 2.0**-53
        if kind is not lnn.LOT or fill in ("as started", "moved"):
            # Only LOT has singular symbols that stay singular. Rounded to float32, a V of rank one has directions of
            # 1e-8 of its size, which BRO turns around in part: its documented exception.
            assert float(values[-1]) >= 1 - (1e-4 if kind is lnn.BRO else 1e-5), fill


@every_kind
def test_denormal_free_numbers_give_finite_weights_and_gradients(kind: Any) -> None:
    layer = layer_of(kind((4,)), 3, 3)
    with torch.no_grad():
        raw_of(layer).copy_(torch.randn_like(raw_of(layer)) * 1e-42)
    layer.weight.square().sum().backward()
    gradient = raw_of(layer).grad
    assert gradient is not None
    assert bool(torch.isfinite(gradient).all())
    assert float(singular_values(layer, (3, 4))[0]) <= 1 + 1e-14


@every_kind
def test_fifty_layers_keep_every_length_after_training(kind: Any) -> None:
    torch.manual_seed(0)
    method = kind((6, 6))
    model = nn.Sequential(*(layer_of(method, 4, 4, bias=False) for _ in range(50)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, target = torch.randn(4, 4, 6, 6), torch.randn(4, 4, 6, 6)
    for _ in range(3):
        optimizer.zero_grad()
        functional.mse_loss(model(x), target).backward()
        optimizer.step()
    for layer in (model[0], model[-1]):
        values = singular_values(layer, (4, 6, 6))
        assert 1 - 1e-5 <= float(values[-1]) <= float(values[0]) <= 1
    with torch.no_grad():
        lengths = model(x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    # Each layer leaves 2^-24 sqrt(36 * 4) = 7e-7 of room for rounding, and rounds by about as much.
    assert bool((lengths > 1 - 50 * 2e-6).all())
    assert bool((lengths < 1 + 50 * 1e-6).all())


@every_kind
@pytest.mark.parametrize(("c_in", "c_out"), [(2, 2), (3, 2), (2, 3)])
def test_derivatives_of_both_orders(kind: Any, c_in: int, c_out: int) -> None:
    torch.manual_seed(0)
    method = kind((3, 4))
    geometry = layer_of(method, c_in, c_out).parametrizations.weight[0].geometry
    raw = method.draw(geometry) + 0.1 * torch.randn(geometry.groups, *method.free_shape(geometry), dtype=torch.float64)

    def weight(raw: Tensor) -> Tensor:
        return method(raw, geometry)

    inputs = (raw.requires_grad_(),)
    assert torch.autograd.gradcheck(weight, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(weight, inputs, fast_mode=True, atol=1e-4)


@every_kind
def test_kernels_of_even_size_with_dilation_wrap_around(kind: Any) -> None:
    # On a circle of 3, three taps with dilation 2 reach once around it.
    torch.manual_seed(0)
    for kernel, dilation, size in ((2, 1, (5,)), (3, 2, (3,)), (4, 1, (4, 4)), (5, 1, (4,))):
        layer = layer_of(kind(size), 2, 2, kernel, dilation=dilation)
        filled(layer, "normal")
        values = singular_values(layer, (2, *size))
        assert float(values[0]) <= 1
        assert kind is lnn.LOT or float(values[-1]) >= 1 - 1e-5
        x = torch.randn(2, 2, *size)
        plain = lnn.condense(layer)
        # Two sums of at most 32 terms in float32.
        torch.testing.assert_close(plain(x), layer(x), rtol=0, atol=1e-5)


def test_a_kernel_that_is_orthogonal_already_stays_as_it_is() -> None:
    torch.manual_seed(0)
    layer = layer_of(lnn.LOT((5, 5)), 3, 3).to(torch.float64)
    raw = raw_of(layer).detach()
    expected = torch.zeros(3, 3, 5, 5, dtype=torch.float64)
    # The free numbers are at a quarter of their weight, at the tap that is the entry itself.
    expected[..., 0, 0] = 4 * raw[..., 1, 1]
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("c_in", "c_out"), [(3, 3), (2, 4), (4, 2)])
def test_the_inverse_of_cayley_finds_numbers_of_the_same_weight(c_in: int, c_out: int) -> None:
    torch.manual_seed(0)
    layer = layer_of(lnn.FourierCayley((5, 4)), c_in, c_out).to(torch.float64)
    weight = layer.weight.detach().clone()
    layer.weight = weight
    # The room for rounding is taken off twice.
    torch.testing.assert_close(layer.weight.detach(), weight, rtol=0, atol=1e-8)


@pytest.mark.parametrize("method", [lnn.LOT((32, 32)), lnn.BRO((32, 32)), lnn.FourierCayley((32, 32))], ids=repr)
def test_rounding_takes_little_of_large_kernels(method: Any) -> None:
    torch.manual_seed(0)
    layer = lnn.Conv2d(8, 8, 3, padding=1, padding_mode="circular", method=method)
    symbol = torch.fft.fft2(layer.weight.detach().double()).flatten(2).movedim(2, 0)
    values = torch.linalg.svdvals(symbol)
    assert float(values.max()) <= 1
    # Room of u (2 sqrt(8) + 4) = 5.8e-7 for the kernel, as much for the iteration of LOT; 5.6e-6 for all ways to round.
    assert float(values.min()) >= 1 - 2e-6


def test_rounding_that_is_the_same_everywhere_gets_its_room() -> None:
    method, geometry = lnn.LOT((64, 64)), Geometry(1, 1, 1, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), Padding.CIRCULAR)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (1, 1, 1, 64, 64), generator=generator).to(torch.float64)
    some = torch.randn(signs.shape, generator=generator, dtype=torch.float64) / 64**2
    # u (2 + 4) where rounding goes both ways, and u (64 + 4) below.
    least = float(method._room(some, geometry, torch.float32))
    assert least == pytest.approx(1 - 6 * 2.0**-24, abs=1e-9)
    # Numbers 0.003 + 0.55 units of their last digit, 2^-32, and -0.003 - 0.45: all are rounded up by 0.45 units, which
    # the mean of the image sees 4096 times.
    grid = float(torch.tensor(0.003))
    kernel = ((2 * signs - 1) * (grid + 0.5 * 2.0**-32) + 0.05 * 2.0**-32) / least
    assert float(torch.fft.fft2(kernel).abs().max()) <= 1
    added = (kernel * least).to(torch.float32).to(torch.float64) - kernel * least
    assert float(added.sum()) > 6 * 2.0**-24
    assert float(method._room(kernel, geometry, torch.float32)) == pytest.approx(1 - 68 * 2.0**-24, abs=1e-9)
