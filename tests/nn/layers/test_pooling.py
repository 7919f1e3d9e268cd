"""Pooling layers: dense Jacobians on every window geometry, exactness without overlap, permutations."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn.core.gain import gain_of
from lipkit.nn.layers.pooling import (
    GlobalAvgPool,
    L2NormPool1d,
    L2NormPool2d,
    L2NormPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    ScaledAvgPool1d,
    ScaledAvgPool2d,
    ScaledAvgPool3d,
    windows_per_entry,
)
from lipkit.nn.layers.space_to_depth import DepthToSpace, SpaceToDepth
from support.jacobians import jacobian, norm_at

# A dense decomposition in float64 is off by some units of 2^-53.
ROUNDING = 1 + 1e-13


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def peaks(size: int, every: int) -> Tensor:
    """Zeros with a peak at every so many positions: one entry wins all windows that hold it."""
    x = torch.zeros(1, 1, size, dtype=torch.float64)
    x[..., every - 1 :: every] = 1 + torch.arange(len(x[0, 0, every - 1 :: every])).double() / 100
    return x


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2), st.integers(1, 3), st.integers(10, 16), st.booleans())
def test_max_pooling_is_bounded_and_attains_its_constant(k: int, s: int, p: int, d: int, n: int, ceil: bool):
    p = min(p, k // 2)
    n = max(n, d * (k - 1) + 1)
    module = MaxPool1d(k, s, p, d, ceil_mode=ceil)
    plain = nn.MaxPool1d(k, s, p, d, ceil_mode=ceil)
    worst = max(norm_at(plain, one) for one in [points(1, 1, n), *(peaks(n, j) for j in range(1, n + 1))])
    assert worst <= gain_of(plain) * ROUNDING
    assert worst * module.factor <= ROUNDING
    x = points(2, 3, n)
    assert torch.allclose(module(x), plain(x) / math.sqrt(module.cover), rtol=1e-6)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_coverings_are_counted_right(k: int, s: int, d: int):
    n = 6 * s * d * k
    counts = [0] * n
    for start in range(0, n - d * (k - 1), s):
        for tap in range(k):
            counts[start + tap * d] += 1
    assert windows_per_entry((k,), (s,), (d,)) == max(counts)


def test_the_constant_of_overlapping_windows_is_not_one():
    """Kernel 3, stride 2 in two dimensions: one entry can win four windows."""
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    x[0, 0, 2, 2] = 1
    assert norm_at(nn.MaxPool2d(3, 2), x) == pytest.approx(2, rel=1e-14)
    assert gain_of(nn.MaxPool2d(3, 2)) == pytest.approx(2, rel=1e-14)
    assert norm_at(MaxPool2d(3, 2), x) == pytest.approx(1, rel=1e-6)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(8, 13))
def test_scaled_averages_have_norm_at_most_one(k: int, s: int, p: int, n: int):
    p = min(p, k // 2)
    assert norm_at(ScaledAvgPool1d(k, s, p), points(1, 1, n)) <= ROUNDING


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(8, 13))
def test_gains_of_torch_averages_hold(k: int, s: int, p: int, ceil: bool, counted: bool, n: int):
    module = nn.AvgPool1d(k, s, min(p, k // 2), ceil, counted)
    assert norm_at(module, points(1, 1, n)) <= gain_of(module) * ROUNDING
    if k % s == 0 and p == 0 and not ceil:
        # A long image comes near the bound when the stride divides the kernel.
        assert norm_at(module, points(1, 1, 40)) >= gain_of(module) * 0.9


def test_a_divisor_of_ones_own_counts():
    module = nn.AvgPool2d(2, divisor_override=1)
    assert norm_at(module, points(1, 1, 4, 4)) == pytest.approx(gain_of(module), rel=1e-12)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (ScaledAvgPool1d(3), (1, 2, 6)),
        (ScaledAvgPool2d((2, 3)), (1, 2, 4, 6)),
        (ScaledAvgPool3d(2), (1, 1, 4, 4, 2)),
        (GlobalAvgPool(), (1, 3, 4, 5)),
        (GlobalAvgPool(1, keepdim=False), (1, 3, 4)),
        (L2NormPool1d(3), (1, 2, 6)),
        (L2NormPool2d(2), (1, 2, 4, 4)),
        (L2NormPool3d(2), (1, 1, 4, 4, 2)),
        (MaxPool1d(2), (1, 2, 6)),
        (MaxPool2d(2), (1, 2, 4, 4)),
        (MaxPool3d(2), (1, 1, 4, 4, 2)),
    ],
    ids=str,
)
def test_without_overlap_all_singular_values_are_one(module: nn.Module, shape: tuple[int, ...]):
    singular = torch.linalg.svdvals(jacobian(module, points(*shape)))
    # The factor is smaller by 2^-22 than it would be in exact arithmetic.
    assert torch.allclose(singular, torch.ones_like(singular), rtol=3e-7)
    assert float(singular.max()) <= 1 + 1e-14
    assert module.gain == 1.0


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(8, 13), st.sampled_from([0.0, 1e-3, 1e3]))
def test_norm_pooling_is_bounded_at_zero_too(k: int, s: int, p: int, n: int, scale: float):
    module = L2NormPool1d(k, s, min(p, k // 2))
    x = scale * points(1, 1, n)
    x[..., : n // 2] = 0
    assert norm_at(module, x) <= ROUNDING


def test_norm_pooling_keeps_the_norm():
    x = points(2, 3, 4, 6)
    assert float(L2NormPool2d(2)(x).norm()) == pytest.approx(float(x.norm()), rel=1e-6)


def test_norm_pooling_has_derivatives_at_zero():
    x = torch.zeros(1, 1, 4, requires_grad=True)
    (first,) = torch.autograd.grad(L2NormPool1d(2)(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.tolist() == second.tolist() == [[[0.0] * 4]]


@pytest.mark.parametrize(("dims", "block"), [*product((1, 2, 3), (1, 2, 3))])
def test_space_and_depth_are_exchanged_by_a_permutation(dims: int, block: int):
    x = torch.arange(2.0 * block ** (2 * dims)).reshape(1, 2, *(block**2,) * dims)
    deep = SpaceToDepth(block, dims)(x)
    assert deep.shape == (1, 2 * block**dims, *(block,) * dims)
    assert deep.flatten().sort().values.tolist() == x.flatten().tolist()
    assert torch.equal(DepthToSpace(block, dims)(deep), x)


def test_in_two_dimensions_it_is_torchs_order():
    x = points(2, 3, 4, 6)
    assert torch.equal(SpaceToDepth(2)(x), nn.functional.pixel_unshuffle(x, 2))
    y = points(2, 8, 4, 6)
    assert torch.equal(DepthToSpace(2)(y), nn.functional.pixel_shuffle(y, 2))


def test_images_without_batch_axis_are_pooled_alike():
    x = points(3, 4, 4)
    for module in (ScaledAvgPool2d(2), L2NormPool2d(2), MaxPool2d(3, 2), GlobalAvgPool(), SpaceToDepth(2)):
        assert torch.equal(module(x), module(x[None])[0])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match="divides"):
        SpaceToDepth(2)(torch.zeros(1, 1, 3, 4))
    with pytest.raises(ShapeError, match="divides"):
        DepthToSpace(2)(torch.zeros(1, 3, 3, 4))
    with pytest.raises(ArgumentError, match="one number or 2"):
        MaxPool2d((1, 2, 3))
    with pytest.raises(ArgumentError, match=">= 1"):
        ScaledAvgPool1d(0)


@pytest.mark.parametrize(
    "module",
    [
        nn.MaxPool2d(2, return_indices=True),
        nn.AdaptiveAvgPool2d(7),
        nn.AdaptiveMaxPool1d(3),
        nn.LPPool2d(3, 2),
        nn.Upsample(scale_factor=(1.5, 2.0)),
        nn.Upsample(scale_factor=2),
        nn.Hardshrink(),
        nn.BatchNorm2d(3),
        nn.Linear(2, 2),
        nn.PReLU(),
        nn.RReLU(),
    ],
    ids=str,
)
def test_modules_without_a_constant_for_every_shape_are_refused(module: nn.Module):
    with pytest.raises(UnsupportedError):
        gain_of(module.train())


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Upsample(scale_factor=(2, 3), mode="nearest"), (1, 1, 2, 3)),
        (nn.LPPool1d(2, 2), (1, 1, 8)),
        (nn.AdaptiveAvgPool2d(1), (1, 1, 1, 1)),
        (nn.AdaptiveMaxPool2d((1, 1)), (1, 1, 3, 3)),
        (nn.Hardswish(), (1, 200)),
        (nn.SELU(), (1, 200)),
        (nn.LeakyReLU(1.5), (1, 20)),
        (nn.ELU(2.0), (1, 200)),
        (nn.GELU(), (1, 200)),
        (nn.GELU(approximate="tanh"), (1, 200)),
        (nn.SiLU(), (1, 200)),
        (nn.Mish(), (1, 200)),
        (nn.CELU(0.5), (1, 200)),
        (nn.RReLU(), (1, 20)),
        (nn.Dropout(), (1, 20)),
        (nn.Sequential(nn.ELU(2.0), nn.LeakyReLU(3.0)), (1, 200)),
    ],
    ids=str,
)
def test_gains_of_torch_modules_hold_and_are_near_the_truth(module: nn.Module, shape: tuple[int, ...]):
    module.eval()
    x = torch.linspace(-3.1, 3.1, math.prod(shape), dtype=torch.float64).reshape(shape)
    found = norm_at(module, x)
    assert found <= gain_of(module) * ROUNDING
    # The grid is 0.03 fine: near the place of the largest slope, not on it.
    assert found >= gain_of(module) * 0.95


def test_number_types_and_second_derivatives():
    modules = (ScaledAvgPool2d(3, 2), L2NormPool2d(2), MaxPool2d(3, 2), GlobalAvgPool(), SpaceToDepth(2))
    for module in (*modules, DepthToSpace(2)):
        x = points(1, 4, 6, 6)
        assert module(x.bfloat16()).dtype == torch.bfloat16
        assert torch.autograd.gradcheck(module, x.requires_grad_())
        assert torch.autograd.gradgradcheck(module, x)
        batch = torch.func.vmap(lambda one, m=module: m(one[None])[0])(points(3, 4, 6, 6))
        assert torch.allclose(batch, module(points(3, 4, 6, 6)), atol=1e-14)
