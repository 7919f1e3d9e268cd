"""The gradient of a kernel against the supremum of the trilinear form, by alternating power steps."""

import math
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor

from lipkit.linops import Conv, ConvTranspose, Padding
from lipkit.privacy.record_limits.kernel_counts import kernel_factor


def supremum(op: Conv | ConvTranspose, steps: int = 60) -> float:
    """A lower bound of sup <g, K * x> over unit K, x and g, that nearly attains it; channels do not matter."""
    generator = torch.Generator().manual_seed(0)

    def unit(t: Tensor) -> Tensor:
        return t / torch.linalg.vector_norm(t).clamp(min=1e-300)

    best = 0.0
    for start in (torch.ones_like(op.weight), torch.rand(op.weight.shape, generator=generator, dtype=torch.float64)):
        kernel, x = unit(start), unit(torch.ones(op.in_shape, dtype=torch.float64))
        x = unit(x + 0.1 * torch.rand(x.shape, generator=generator, dtype=torch.float64))
        for _ in range(steps):
            g = unit(op.with_tensors((kernel,)).apply(x))
            x = unit(op.with_tensors((kernel,)).adjoint(g))
            free = kernel.clone().requires_grad_()
            (kernel,) = torch.autograd.grad((g * op.with_tensors((free,)).apply(x)).sum(), free)
            best, kernel = float(torch.linalg.vector_norm(kernel)), unit(kernel)
    return best


def ones_counts(op: Conv) -> tuple[int, int, int]:
    """r, m and t from the all-ones kernel, its adjoint, and kernels of one tap."""
    ones = op.with_tensors((torch.ones_like(op.weight),))
    image, result = torch.ones(op.in_shape, dtype=torch.float64), torch.ones(op.out_shape, dtype=torch.float64)
    readers, taps = ones.adjoint(result).max(), ones.apply(image).max()
    repeats = 0.0
    for at in range(op.weight.numel()):
        one = torch.zeros_like(op.weight).flatten().index_fill(0, torch.tensor([at]), 1.0).reshape(op.weight.shape)
        repeats = max(repeats, float(op.with_tensors((one,)).adjoint(result).max()))
    return round(float(readers)), round(repeats), round(float(taps))


axis = st.tuples(
    st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)
)


class Geometry(NamedTuple):
    """What a convolution of one channel in each group is made of."""

    kernel: tuple[int, ...]
    spatial: tuple[int, ...]
    stride: tuple[int, ...]
    sides: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    mode: Padding

    def conv(self, groups: int) -> Conv:
        weight = torch.ones((groups, 1, *self.kernel), dtype=torch.float64)
        return Conv(weight, self.spatial, self.stride, self.sides, self.dilation, groups, self.mode)


# Operators are made in the tests: their checks draw random numbers, which strategies must not.
@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    axes = draw(st.lists(axis, min_size=1, max_size=2))
    mode = draw(st.sampled_from(Padding))
    size, kernel, stride, dilation, left, right = zip(*axes, strict=True)
    sides = tuple(zip(left, right, strict=True))
    if mode in (Padding.REFLECT, Padding.CIRCULAR):
        room = [n - 1 if mode is Padding.REFLECT else n for n in size]
        assume(all(max(pair) <= most for pair, most in zip(sides, room, strict=True)))
    fits = (n + a + b >= d * (k - 1) + 1 for n, k, d, (a, b) in zip(size, kernel, dilation, sides, strict=True))
    assume(all(fits))
    return Geometry(kernel, size, stride, sides, dilation, mode)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(geometries(), st.integers(1, 2))
def test_no_kernel_is_above_its_count(geometry: Geometry, groups: int):
    op = geometry.conv(groups)
    assert supremum(op, 25) <= kernel_factor(op) * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(geometries())
def test_axes_never_count_more_than_the_whole_kernel(geometry: Geometry):
    op = geometry.conv(1)
    readers, repeats, taps = ones_counts(op)
    assert kernel_factor(op) ** 2 <= min(readers, repeats * taps) * (1 + 1e-12)
    if len(op.spatial) == 1:
        assert kernel_factor(op) ** 2 == pytest.approx(min(readers, repeats * taps))


@pytest.mark.parametrize(("kernel", "size"), [((3,), (5,)), ((3, 3), (6, 6)), ((2, 4), (5, 6)), ((5,), (5,))])
def test_circular_padding_attains_it(kernel: tuple[int, ...], size: tuple[int, ...]):
    sides = tuple((k // 2, k - 1 - k // 2) for k in kernel)
    ones = (1,) * len(kernel)
    op = Conv(torch.ones((1, 1, *kernel), dtype=torch.float64), size, ones, sides, ones, 1, Padding.CIRCULAR)
    assert kernel_factor(op) == pytest.approx(math.sqrt(math.prod(kernel)))
    assert supremum(op) == pytest.approx(kernel_factor(op), rel=1e-6)


def test_reflect_padding_is_above_the_root_of_the_taps():
    # 004-b 16 gives sqrt(9) = 3 for zero and circular padding; the addenda measured 3.187 for reflect, 8x8.
    op = Conv(torch.ones(1, 1, 3, 3, dtype=torch.float64), (8, 8), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, Padding.REFLECT)
    assert supremum(op) == pytest.approx(3.187, abs=1e-3)
    assert kernel_factor(op) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "factor"),
    [(4, 2, 1, 1, 2.0), (2, 2, 0, 1, 1.0), (3, 1, 1, 1, 3.0), (3, 2, 1, 1, 2.0), (3, 2, 0, 2, 3.0)],
)
def test_transposed_convolutions(kernel: int, stride: int, padding: int, dilation: int, factor: float):
    weight = torch.ones(1, 1, kernel, kernel, dtype=torch.float64)
    op = ConvTranspose(weight, (5, 5), (stride,) * 2, (padding,) * 2, (0, 0), (dilation,) * 2)
    assert kernel_factor(op) == pytest.approx(factor)
    assert supremum(op) <= factor * (1 + 1e-9)


@pytest.mark.parametrize(("stride", "factor"), [(1, 3.0), (2, 2.0), (3, 1.0)])
def test_strides_count_how_many_windows_hold_one_pixel(stride: int, factor: float):
    op = Conv(torch.ones(1, 1, 3, 3, dtype=torch.float64), (8, 8), (stride,) * 2, ((1, 1),) * 2, (1, 1))
    assert kernel_factor(op) == pytest.approx(factor)
