"""Rules with a geometry of their own, on drawn geometries: windows, axes, slices and broadcasts."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.trace.rules import Sample
from support.rule_trials import assert_computes, trial_of

aten = torch.ops.aten
CONV = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
TRANSPOSED = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}
POOL = {1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default}
ADAPTIVE = {1: aten.adaptive_avg_pool1d, 2: aten.adaptive_avg_pool2d, 3: aten.adaptive_avg_pool3d}


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def numbers(data: st.DataObject, rank: int, low: int, high: int) -> list[int]:
    return data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))


def shapes(data: st.DataObject, least: int = 1) -> list[int]:
    return data.draw(st.lists(st.integers(1, 4), min_size=least, max_size=4))


@settings(max_examples=40)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    rank, groups, many = (data.draw(st.integers(1, high)) for high in (3, 2, 2))
    c_in, c_out = (groups * data.draw(st.integers(1, 2)) for _ in range(2))
    kernel, stride, dilation = numbers(data, rank, 1, 3), numbers(data, rank, 1, 2), numbers(data, rank, 1, 2)
    padding, spatial = numbers(data, rank, 0, 2), numbers(data, rank, 1, 5)
    _ = assume(all(n + 2 * p > d * (k - 1) for n, p, d, k in zip(spatial, padding, dilation, kernel, strict=True)))
    x, weight = normal(many, c_in, *spatial), normal(c_out, c_in // groups, *kernel)
    bias = data.draw(st.sampled_from([None, normal(c_out)]))
    sample = Sample((x, weight, bias, stride, padding, dilation, groups))
    assert_computes(trial_of(CONV[rank], sample))


@settings(max_examples=40)
@given(st.data())
def test_transposed_convolutions(data: st.DataObject) -> None:
    rank, groups, many = (data.draw(st.integers(1, high)) for high in (3, 2, 2))
    c_in, c_out = (groups * data.draw(st.integers(1, 2)) for _ in range(2))
    kernel, stride, dilation = numbers(data, rank, 1, 3), numbers(data, rank, 1, 3), numbers(data, rank, 1, 2)
    padding, spatial = numbers(data, rank, 0, 1), numbers(data, rank, 2, 4)
    rest = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    x, weight = normal(many, c_in, *spatial), normal(c_in, c_out // groups, *kernel)
    sample = Sample((x, weight, normal(c_out), stride, padding, rest, groups, dilation))
    try:
        found = trial_of(TRANSPOSED[rank], sample)
    except ShapeError:
        _ = assume(False)
        raise
    assert_computes(found)


@settings(max_examples=60)
@given(st.data())
def test_average_pools(data: st.DataObject) -> None:
    rank, many = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    kernel, stride, spatial = numbers(data, rank, 1, 3), numbers(data, rank, 1, 3), numbers(data, rank, 3, 6)
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    flags = (data.draw(st.booleans()), data.draw(st.booleans()))
    divisor = (data.draw(st.sampled_from([None, 3])),) if rank > 1 else ()
    sample = Sample((normal(many, 2, *spatial), kernel, stride, padding, *flags, *divisor))
    assert_computes(trial_of(POOL[rank], sample))


@settings(max_examples=30)
@given(st.data())
def test_adaptive_average_pools(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    sample = Sample((normal(1, 2, *numbers(data, rank, 1, 6)), numbers(data, rank, 1, 4)))
    assert_computes(trial_of(ADAPTIVE[rank].default, sample))


@settings(max_examples=60)
@given(st.data())
def test_means_and_sums_over_axes(data: st.DataObject) -> None:
    shape = shapes(data)
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    signed = [axis - data.draw(st.sampled_from([0, len(shape)])) for axis in axes]
    op = data.draw(st.sampled_from([aten.mean.dim, aten.sum.dim_IntList]))
    given_axes = signed or data.draw(st.sampled_from([None, []]))
    assert_computes(trial_of(op, Sample((normal(*shape), given_axes, data.draw(st.booleans())))))


@settings(max_examples=60)
@given(st.data())
def test_slices(data: st.DataObject) -> None:
    shape = shapes(data)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    ends = st.one_of(st.none(), st.integers(-6, 6))
    start, stop, step = data.draw(ends), data.draw(ends), data.draw(st.integers(1, 3))
    x = normal(*shape)
    part = aten.slice.Tensor(x, axis, start, stop, step)
    _ = assume(part.numel())
    assert_computes(trial_of(aten.slice.Tensor, Sample((x, axis, start, stop, step))))
    scattered = Sample(
        (x, torch.randn_like(part), axis, start, stop, step), wrt=data.draw(st.sampled_from([(0,), (1,), (0, 1)]))
    )
    assert_computes(trial_of(aten.slice_scatter.default, scattered))


@settings(max_examples=60)
@given(st.data())
def test_broadcast_sums_and_products(data: st.DataObject) -> None:
    target = shapes(data)
    one, other = (
        [n if data.draw(st.booleans()) else 1 for n in target[data.draw(st.integers(0, 1)) :]] for _ in range(2)
    )
    x, y = normal(*one), normal(*other)
    alpha = data.draw(st.sampled_from([1, -2, 0.5]))
    wrt = data.draw(st.sampled_from([(0,), (1,), (0, 1)]))
    assert_computes(trial_of(aten.add.Tensor, Sample((x, y), {"alpha": alpha}, wrt)))
    assert_computes(trial_of(aten.sub.Tensor, Sample((x, y), {"alpha": alpha}, wrt)))
    if len(wrt) == 1:
        assert_computes(trial_of(aten.mul.Tensor, Sample((x, y), wrt=wrt)))
    if wrt == (0,):
        assert_computes(trial_of(aten.div.Tensor, Sample((x, y + y.sign()), wrt=wrt)))


@settings(max_examples=60)
@given(st.data())
def test_products_with_a_constant_matrix(data: st.DataObject) -> None:
    rows, inner, columns = (data.draw(st.integers(1, 3)) for _ in range(3))
    batch = data.draw(st.lists(st.integers(1, 2), max_size=2))
    left, right = (
        [n if data.draw(st.booleans()) else 1 for n in batch[data.draw(st.integers(0, len(batch))) :]] for _ in range(2)
    )
    x = normal(*left, rows, inner) if data.draw(st.booleans()) else normal(inner)
    y = normal(*right, inner, columns) if data.draw(st.booleans()) else normal(inner)
    assert_computes(trial_of(aten.matmul.default, Sample((x, y), wrt=data.draw(st.sampled_from([(0,), (1,)])))))
