"""Symbols of convolutions against dense matrices and the fast Fourier transform, over drawn geometries."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.linops import (
    Adjoint,
    AvgPool,
    BatchNorm,
    Conv,
    ConvTranspose,
    Dense,
    Diagonal,
    LinearOperator,
    Padding,
    Permute,
    Reshape,
    Scaled,
    Shape,
    Symbol,
    materialize,
    symbol,
)
from support.naming import naming
from support.operators.conv_geometries import conv_operators, conv_transpose_operators, tensors
from support.operators.geometries import KINDS


def norm(op: LinearOperator) -> float:
    return float(torch.linalg.svdvals(materialize(op)).max())


def on_torus(found: Symbol) -> float:
    """gain max ||E(w)|| over the torus, with every frequency, not one of each pair."""
    points = torch.cartesian_prod(*[torch.arange(n) for n in found.torus]).reshape(-1, len(found.torus))
    return found.gain * float(torch.linalg.svdvals(found.at(points, found.torus)).max())


def compare(op: LinearOperator) -> bool:
    """Never below the dense norm; equal to it where the symbol says so, which is returned."""
    found = symbol(op)
    value, truth = on_torus(found), norm(op)
    # Evaluating the symbol is within `error`; two decompositions of up to 150 unknowns differ by 1e-13.
    slack = 2 * float(found.error()) + 1e-12 * truth
    assert value >= truth - slack
    if found.exact:
        assert value <= truth + slack
    return found.exact


@pytest.mark.parametrize(
    ("mode", "least"), [(Padding.CIRCULAR, 30), (Padding.ZEROS, 10), (Padding.REFLECT, 10), (Padding.REPLICATE, 1)]
)
def test_convolutions_of_every_geometry(mode: Padding, least: int) -> None:
    exact = 0

    @settings(max_examples=120)
    @given(conv_operators(modes=(mode,)))
    def check(op: Conv) -> None:
        nonlocal exact
        exact += compare(op)

    check()
    assert exact >= least


@pytest.mark.parametrize("kind", [ConvTranspose, AvgPool])
def test_transposed_convolutions_and_pools(kind: type[LinearOperator]) -> None:
    exact = 0

    @settings(max_examples=150)
    @given(KINDS[kind])
    def check(op: LinearOperator) -> None:
        nonlocal exact
        exact += compare(op)

    check()
    # Those whose windows do not overlap.
    assert exact >= 12


@settings(max_examples=80)
@given(st.one_of(conv_operators(torch.complex128), conv_transpose_operators(torch.complex128)))
def test_complex_kernels(op: Conv | ConvTranspose) -> None:
    compare(op)


@settings(max_examples=40)
@given(conv_operators(), tensors(()))
def test_adjoints_and_multiples(op: Conv, factor: Tensor) -> None:
    plain = symbol(op)
    assert on_torus(symbol(Adjoint(op))) == on_torus(plain)
    # One rounding for each tap.
    assert on_torus(symbol(Scaled(factor, op))) == pytest.approx(float(factor.abs()) * on_torus(plain), rel=1e-14)
    assert symbol(op.T).exact is plain.exact


def test_rearrangements_change_nothing() -> None:
    weight = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    op = Conv(weight, (4, 5), (1, 1), ((1, 0), (0, 1)), (1, 1), 1, Padding.CIRCULAR)
    flat, turned = Reshape(op.out_shape, (op.out_size,)), Permute((5, 3, 4), (1, 2, 0))
    for some in (flat @ op, op @ turned, flat @ (op @ turned), (flat @ op).T, flat @ (2.0 * op) @ turned):
        found = symbol(some)
        assert found.exact
        # The same blocks; a decomposition of 6 unknowns and one of 60.
        assert on_torus(found) == pytest.approx(norm(some), rel=1e-12)
    for other in (
        op.T @ op,
        Diagonal(torch.ones(2, 4, 5), op.out_shape) @ op,
        Diagonal(torch.ones(5), op.out_shape) @ op,
    ):
        with pytest.raises(UnsupportedError, match="not a convolution"):
            symbol(other)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_factor_for_each_channel_scales_the_rows(groups: int) -> None:
    draw = torch.Generator().manual_seed(0)
    weight, scale, variance = (torch.randn(s, dtype=torch.float64, generator=draw) for s in ((4, 2, 2, 2), (4,), (4,)))
    op = Conv(weight, (4, 6), (1, 2), ((1, 0), (0, 0)), (1, 1), groups, Padding.CIRCULAR)
    flat = Reshape(op.out_shape, (op.out_size,))
    norm_layer = BatchNorm(scale, variance.square(), 1e-3, op.out_shape)
    for some in (Diagonal(scale[:, None, None], op.out_shape) @ op, flat @ norm_layer @ op):
        # The same blocks; a decomposition of 8 unknowns and one of 96.
        assert on_torus(symbol(some)) == pytest.approx(norm(some), rel=1e-12)


def test_a_whole_circle_is_exact_and_a_part_of_it_is_not() -> None:
    weight = torch.randn(2, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def circle(n: int, stride: int, sides: tuple[int, int]) -> Symbol:
        return symbol(Conv(weight, (n,), (stride,), (sides,), (1,), 1, Padding.CIRCULAR))

    assert circle(6, 1, (1, 1)).exact
    assert circle(6, 2, (1, 0)).exact
    assert circle(6, 2, (1, 1)).exact
    assert not circle(6, 1, (0, 1)).exact  # Five windows of six.
    assert not circle(6, 1, (2, 1)).exact  # Seven: one twice.
    assert circle(6, 1, (4, 4)).gain == pytest.approx(math.sqrt(2), rel=1e-14)  # Twelve: each twice.
    assert circle(6, 1, (4, 4)).exact
    assert circle(5, 2, (4, 3)).torus == (5,)  # Steps of two visit every start of an odd circle, in two turns.


def test_taps_left_after_stride_and_dilation() -> None:
    for k, stride, dilation in itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4)):
        weight = torch.ones(1, 1, k, dtype=torch.float64)
        side = dilation * k
        found = symbol(Conv(weight, (12,), (stride,), ((side, side),), (dilation,)))
        common = math.gcd(stride, dilation)
        with naming(k, stride, dilation):
            assert found.taps == (math.ceil(k * common / stride),)
            # Columns are the phases that the taps fall in.
            assert found.kernel.shape[2] == len({a * dilation % stride for a in range(k)})
            assert float(found.kernel.sum()) == k


@settings(max_examples=60)
@given(st.integers(1, 3).flatmap(lambda rank: st.tuples(*(st.integers(1, 6) for _ in range(rank)))), st.booleans())
def test_frequencies_are_one_of_each_pair(grid: Shape, complex_: bool) -> None:
    dtype = torch.complex128 if complex_ else torch.float64
    found = Symbol(torch.ones(1, 1, 1, *(1 for _ in grid), dtype=dtype), grid, 1.0, True, None)
    points = [tuple(point) for point in found.frequencies(grid).tolist()]
    every = set(itertools.product(*map(range, grid)))
    assert len(set(points)) == len(points)
    mirrored = {tuple(-f % n for f, n in zip(point, grid, strict=True)) for point in points}
    assert set(points) | mirrored == every
    # A real kernel: no point beside its mirror image. A complex one: all points.
    own = {point for point in every if point == tuple(-f % n for f, n in zip(point, grid, strict=True))}
    assert len(points) == (len(every) if complex_ else (len(every) + len(own)) // 2)


@settings(max_examples=60)
@given(st.integers(1, 3), st.booleans(), st.data())
def test_values_against_the_fast_fourier_transform(rank: int, complex_: bool, data: st.DataObject) -> None:
    grid = tuple(data.draw(st.integers(1, 7)) for _ in range(rank))
    taps = tuple(data.draw(st.integers(1, n)) for n in grid)
    kernel = data.draw(tensors((2, 3, 2, *taps), torch.complex128 if complex_ else torch.float64))
    found = Symbol(kernel, grid, 1.0, True, None)
    points = torch.cartesian_prod(*[torch.arange(n) for n in grid]).reshape(-1, rank)
    expected = torch.fft.fftn(kernel, s=grid, dim=tuple(range(3, 3 + rank))).flatten(3).movedim(3, 0)
    blocks = found.at(points, grid)
    assert blocks.dtype == torch.complex128
    gap = torch.linalg.matrix_norm(blocks - expected, ord=2).max()
    # The transform of torch has an error of its own, of log2(343) roundings of the same numbers: well below `error`.
    assert gap <= 2 * found.error()


def test_the_error_bounds_the_error() -> None:
    """A kernel of ones at a third of a turn, where the sum is known exactly."""
    taps, n = 3 * 10**4, 3
    found = Symbol(torch.ones(1, 1, 1, taps, dtype=torch.float64), (n,), 1.0, True, None)
    value = found.at(torch.tensor([[0], [1], [2]]), (n,))
    # 1 + w + w^2 = 0, ten thousand times over.
    assert value[0].item() == taps
    assert value[1:].abs().max() <= found.error()
    assert found.error() <= 1e-6


def test_the_kernel_stays_live() -> None:
    weight = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def value(w: Tensor) -> Tensor:
        found = symbol(Conv(w, (6,), (2,), ((1, 1),), (1,)))
        return torch.view_as_real(found.at(torch.tensor([[1], [2]]), (5,)))

    assert torch.autograd.gradcheck(value, (weight,))


@pytest.mark.parametrize("op", [Dense(torch.eye(2)), Diagonal(torch.ones(2), (2,))], ids=str)
def test_others_have_none(op: LinearOperator) -> None:
    for one in (op, op.T, 2.0 * op):
        with pytest.raises(UnsupportedError, match="not a convolution"):
            symbol(one)
