"""BCOP and AOC: isometries where they promise them, contractions everywhere, against dense matrices."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError
from lipkit.linops import Padding, Shape
from lipkit.nn import convex
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Promise
from lipkit.nn.methods.convolutions._base import ChainMethod, chain_of
from lipkit.nn.methods.convolutions.projector_chain import times_factor
from support.layers.checks import matrix_of, promised, singular_values

METHODS: tuple[ChainMethod, ...] = (lnn.BCOP(), lnn.AOC())
both = pytest.mark.parametrize("method", METHODS, ids=str)
# What the stored weights lose to make room for rounding to float32: units of 2^-24 times the root of taps and channels.
STORED = 1 - 3e-6


def circle(rank: int, channels: tuple[int, int], kernel: int, stride: int, method: lnn.WeightMethod) -> Any:
    kind = {1: lnn.Conv1d, 2: lnn.Conv2d, 3: lnn.Conv3d}[rank]
    return kind(*channels, kernel, stride, kernel // 2, padding_mode="circular", method=method)


def moved(layer: Any) -> Any:
    with torch.no_grad():
        raw = layer.parametrizations.weight.original
        raw.add_(0.3 * raw.square().mean().sqrt() * torch.randn_like(raw))
    return layer


@both
@pytest.mark.parametrize("channels", [(4, 4), (3, 5), (5, 3), (1, 6), (6, 1)], ids=str)
@pytest.mark.parametrize(("rank", "kernel"), [(1, 3), (1, 5), (2, 3), (2, 5), (3, 3)])
def test_circular_convolutions_of_stride_one_are_isometries(
    method: ChainMethod, channels: tuple[int, int], rank: int, kernel: int
) -> None:
    torch.manual_seed(1)
    layer = moved(circle(rank, channels, kernel, 1, method))
    assert promised(layer) is Promise.ISOMETRY
    values = singular_values(layer, (channels[0], *((5,) * rank if rank < 3 else (3, 4, 3))))
    assert float(values[0]) <= 1
    assert float(values[-1]) >= STORED


@pytest.mark.parametrize("channels", [(2, 8), (2, 3), (3, 2), (2, 11), (1, 4), (1, 9)], ids=str)
@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 2, 6), (5, 2, 6), (3, 3, 6), (5, 3, 9)])
def test_aoc_is_an_isometry_with_strides(channels: tuple[int, int], kernel: int, stride: int, size: int) -> None:
    torch.manual_seed(2)
    layer = moved(circle(2, channels, kernel, stride, lnn.AOC()))
    assert promised(layer) is Promise.ISOMETRY
    values = singular_values(layer, (channels[0], size, size))
    assert float(values[0]) <= 1
    assert float(values[-1]) >= STORED


@pytest.mark.slow
def test_every_promise_in_one_dimension_is_what_a_dense_matrix_shows() -> None:
    """All small geometries: isometries have all singular values at one, and nothing is above one."""
    torch.manual_seed(3)
    kept = 0
    sides = (1, 3), (3, 1), (2, 2), (1, 1)
    walks = itertools.product(METHODS, (1, 2, 3), (1, 2, 3), (1, 2), (0, 1, 2, 4), ("zeros", "circular"), sides)
    for method, kernel, stride, dilation, padding, mode, (cols, rows) in walks:
        if mode == "circular" and 2 * padding > dilation * (kernel - 1):
            continue
        walk = (kernel, stride, padding, dilation)
        layer = lnn.Conv1d(cols, rows, *walk, padding_mode=mode, method=method)
        values = singular_values(moved(layer), (cols, 12))
        assert float(values[0]) <= 1 + 1e-14
        if promised(layer) is Promise.ISOMETRY:
            kept += 1
            assert float(values[-1]) >= STORED, (method, layer)
    # Not an empty statement: about a third of them promise it.
    assert kept > 200


@pytest.mark.parametrize("stride", [1, 2])
def test_promises_hold_for_transposed_convolutions(stride: int) -> None:
    torch.manual_seed(4)
    for kernel, padding, rest in itertools.product((2, 3, 4), (0, 1, 2, 3), (0, 1)):
        if rest >= stride or 2 * padding > 2 * (kernel - 1):
            continue
        layer = moved(lnn.ConvTranspose1d(4, 2, kernel, stride, padding, rest))
        values = singular_values(layer, (4, 6))
        assert float(values[0]) <= 1 + 1e-14
        if promised(layer) is Promise.ISOMETRY:
            assert float(values[-1]) >= STORED


def test_kernels_shorter_than_the_stride_are_contractions_of_norm_one() -> None:
    torch.manual_seed(5)
    layer = lnn.Conv2d(2, 12, 2, stride=3, method=lnn.AOC())
    assert promised(layer) is Promise.CONTRACTION
    values = singular_values(layer, (2, 6, 6))
    # Entries that no window meets are lost, all others kept: values are one or zero.
    assert bool(((values - 1).abs() < 3e-6).logical_or(values < 1e-6).all())
    assert int((values > 0.5).sum()) == 2 * 16


def test_factors_are_contractions_whatever_the_matrix() -> None:
    """|1 - l + l z| <= 1 for l in [0, 1]: on the whole circle, for R of norm at most one and any rank."""
    torch.manual_seed(6)
    angles = torch.linspace(0, 2 * torch.pi, 50, dtype=torch.float64)
    for rank in range(5):
        r = torch.randn(rank, 4, dtype=torch.float64)
        r = r / torch.linalg.matrix_norm(r, 2).clamp(min=1) if rank else r
        p = r.mT @ r
        eye = torch.eye(4, dtype=torch.float64)
        symbol = (eye - p) + p * torch.exp(1j * angles)[:, None, None]
        assert float(torch.linalg.matrix_norm(symbol, 2).max()) <= 1 + 1e-14
        kernel = times_factor(eye[None, :, None], p[None], 0)
        torch.testing.assert_close(kernel[0].movedim(1, 0), torch.stack([eye - p, p]))


@both
def test_the_kernel_is_the_product_of_its_factors(method: ChainMethod) -> None:
    """Against the layers themselves: an orthogonal matrix after convolutions of two taps, on a circle."""
    torch.manual_seed(7)
    geometry = Geometry(1, 4, 4, (3, 2), (1, 1), ((1, 1), (0, 1)), (1, 1), Padding.CIRCULAR)
    raw = torch.randn(1, *method.free_shape(geometry), dtype=torch.float64)
    chain = chain_of(geometry, (1, 1))
    assert chain.axes == (0, 1, 0)
    head, factors = chain.parts(raw)
    # By another way than the method's: SVDs.
    left, _, right = torch.linalg.svd(head[0])
    x = torch.randn(4, 6, 6, dtype=torch.float64)
    y = x
    identity = torch.eye(4, dtype=torch.float64)
    for position in (2, 1, 0):
        _, _, rows = torch.linalg.svd(factors[position], full_matrices=False)
        p = rows.mT @ rows
        p = identity - p if position == 2 else p
        ahead = y.roll(-1, 1 + chain.axes[position])
        y = torch.einsum("ij,jab->iab", identity - p, y) + torch.einsum("ij,jab->iab", p, ahead)
    expected = torch.einsum("ij,jab->iab", left @ right, y)
    weight = method(raw, geometry)[0]
    found = sum(
        torch.einsum("ij,jab->iab", weight[:, :, a, b], x.roll((-a, -b), (1, 2)))
        for a, b in itertools.product(range(3), range(2))
    )
    # 8 Björck steps on a random 4 x 4 matrix; the start is not near an isometry.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@both
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 4), (4, 6)], ids=str)
def test_projectors_are_found_again(method: ChainMethod, shape: tuple[int, int]) -> None:
    torch.manual_seed(8)
    walk: tuple[Any, ...] = ((1, 1), ((1, 1), (1, 1)), (1, 1), Padding.CIRCULAR)
    geometry = Geometry(2, *shape, (3, 3), *walk)
    start = method.draw(geometry)
    for raw in (start, start + 0.05 * torch.randn_like(start)):
        weight = method(raw, geometry)
        again = method(method.inverse(weight, geometry), geometry)
        torch.testing.assert_close(again, weight, rtol=0, atol=1e-8)
        assert method.is_feasible(weight, geometry)
        assert not method.is_feasible(0.999 * weight, geometry)


def test_other_kernels_become_ones_near_them() -> None:
    torch.manual_seed(9)
    plain = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    layer = lnn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    noise = 1e-3 * torch.randn_like(layer.weight)
    with torch.no_grad():
        plain.weight.copy_(layer.weight + noise)
    lnn.parametrize(plain, "weight", lnn.AOC())
    # Nearest matrices move by no more than the noise; here a few of them follow each other.
    assert float((plain.weight - layer.weight).detach().norm()) <= 10 * float(noise.norm())
    assert float(singular_values(plain, (4, 6, 6))[-1]) >= STORED


def test_one_channel_to_one_is_a_contraction_that_learns() -> None:
    torch.manual_seed(10)
    layer: Any = lnn.Conv2d(3, 3, 3, padding=1, groups=3)
    assert promised(layer) is Promise.CONTRACTION
    assert layer.parametrizations.weight.original.shape == (3, 1, 3, 3)
    raw = layer.geometry.blocks(moved(layer).parametrizations.weight.original)
    torch.testing.assert_close(layer.weight, lnn.AOL()(raw, layer.geometry).flatten(0, 1))
    assert float(singular_values(layer, (3, 5, 5))[0]) <= 1
    # BCOP says what it is: shifts.
    shift: Any = lnn.Conv1d(1, 1, 3, padding=1, method=lnn.BCOP())
    assert sorted(shift.weight.abs().flatten().round(decimals=5).tolist()) == [0, 0, 1]


@both
@pytest.mark.parametrize("kernel", [(3, 3), (5, 1), (3, 5)], ids=str)
def test_odd_kernels_start_as_a_matrix_at_the_central_tap(method: ChainMethod, kernel: Shape) -> None:
    torch.manual_seed(11)
    layer = lnn.Conv2d(5, 5, kernel, method=method)
    centre = layer.weight[(..., *(k // 2 for k in kernel))].detach()
    torch.testing.assert_close(centre.mT @ centre, torch.eye(5), rtol=0, atol=3e-6)
    torch.testing.assert_close(layer.weight.detach().norm(), torch.tensor(5.0).sqrt(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("method", [lnn.AOC(lnn.Cayley()), lnn.BCOP(lnn.Exponential()), lnn.AOC(lnn.QR())], ids=str)
def test_projectors_by_other_methods(method: ChainMethod) -> None:
    torch.manual_seed(12)
    layer = moved(lnn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", method=method))
    assert float(singular_values(layer, (4, 5, 5))[-1]) >= STORED


def test_zero_padding_loses_at_the_border_only() -> None:
    """Outputs whose windows lie in the image have orthonormal rows; all others are cut."""
    torch.manual_seed(13)
    layer = moved(lnn.Conv2d(3, 3, 3, padding=1))
    assert promised(layer) is Promise.CONTRACTION
    matrix = matrix_of(layer, (3, 6, 6)).unflatten(0, (3, 6, 6))
    inner = matrix[:, 1:-1, 1:-1].flatten(0, 2)
    assert float(torch.linalg.svdvals(inner)[-1]) >= STORED
    assert float(torch.linalg.svdvals(matrix.flatten(0, 2))[-1]) < 0.9


@pytest.mark.parametrize("method", [lnn.AOC, lnn.BCOP])
def test_contractions_within_are_refused_because_an_isometry_is_promised(method: Any):
    for inner in (lnn.SingularClip(), convex.Stochastic()):
        with pytest.raises(ArgumentError, match="needs a method for orthogonal matrices"):
            method(inner)
