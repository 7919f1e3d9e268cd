"""The prepared form of an operator is the same map, both ways, with fewer parts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.linops import (
    BatchNorm,
    Compose,
    Conv,
    Dense,
    Diagonal,
    LinearOperator,
    Padding,
    Reshape,
    Scaled,
    StatedRounding,
    Sum,
    Sweep,
    depth,
    materialize,
)
from lipkit.linops.queries.prepare import BothWays, prepare


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(op: LinearOperator) -> LinearOperator:
    """Checks the map and its adjoint against the matrix of the original; returns the prepared form."""
    made, matrix = prepare(op), materialize(op)
    x, y = random(3, *op.in_shape, seed=1), random(3, *op.out_shape, seed=2)
    x, y = x.to(op.dtype), y.to(op.dtype)
    # Sums of at most a few hundred products, each relative to its absolute value.
    room = 1e-13 * float(matrix.abs().sum())
    torch.testing.assert_close(made.apply(x).flatten(1), x.flatten(1) @ matrix.mT, rtol=0, atol=room)
    torch.testing.assert_close(made.adjoint(y).flatten(1), y.flatten(1) @ matrix.conj(), rtol=0, atol=room)
    return made


@given(
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    spatial=st.tuples(st.integers(4, 6), st.integers(4, 6)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    uneven=st.booleans(),
    dilation=st.integers(1, 2),
    stride=st.integers(1, 2),
    groups=st.integers(1, 2),
    mode=st.sampled_from([Padding.ZEROS, Padding.CIRCULAR]),
    complex_=st.booleans(),
)
def test_convolutions_of_all_geometries(
    channels: tuple[int, int], spatial: tuple[int, int], kernel: tuple[int, int], pads: tuple[int, int], uneven: bool,
    dilation: int, stride: int, groups: int, mode: Padding, complex_: bool,
):  # fmt: skip
    c_out, c_in = channels
    weight = random(c_out * groups, c_in, *kernel)
    weight = weight + 1j * random(c_out * groups, c_in, *kernel, seed=5) if complex_ else weight
    if any(n + 2 * p < dilation * (k - 1) + 1 for n, p, k in zip(spatial, pads, kernel, strict=True)):
        return
    padding = tuple((p, p + uneven) for p in pads)
    conv = Conv(weight, spatial, (stride,) * 2, padding, (dilation,) * 2, groups, mode)
    made = same(conv)
    inside = all(p <= dilation * (k - 1) for p, k in zip(pads, kernel, strict=True))
    wanted = stride == 1 and groups == 1 and mode is Padding.ZEROS and not uneven and inside
    assert isinstance(made, BothWays) == wanted


def conv(groups: int = 1, stride: int = 1) -> Conv:
    return Conv(random(4, 4 // groups, 3, 3), (5, 5), (stride,) * 2, ((1, 1),) * 2, (1, 1), groups)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "scale",
    [random(), random(1), random(4, 1, 1), random(1, 1, 1), random(4, 1, 1).expand(4, 5, 5), random(4, 5, 5)],
    ids=["number", "one", "channels", "one of rank 3", "channels spread out", "entries"],
)
def test_scales_beside_a_convolution(scale: torch.Tensor, groups: int):
    after = same(Compose(Diagonal(scale, (4, 5, 5)), conv(groups)))
    before = same(Compose(conv(groups), Diagonal(scale, (4, 5, 5))))
    by_entries = scale.shape == (4, 5, 5) and bool((scale != scale[:, :1, :1]).any())
    assert isinstance(after, Compose) == by_entries
    assert isinstance(before, Compose) == (by_entries or groups == 2)


def test_a_row_of_a_residual_network_becomes_one_convolution_an_edge():
    norm = BatchNorm(random(4), random(4, seed=3).abs(), 1e-5, (4, 5, 5))
    half = Diagonal(torch.tensor(0.5, dtype=torch.float64), (4, 5, 5))
    body = Compose(half, Compose(norm, conv()))
    graph = Sweep(((1, 0, body), (2, 0, half), (2, 1, body)), 0, 2)
    made = same(StatedRounding(graph, depth(graph), 3.0))
    assert isinstance(made, StatedRounding)
    assert (made.roundings, made.size) == (depth(graph), 3.0)
    assert isinstance(made.inner, Sweep)
    assert [type(edge) for _, _, edge in made.inner.edges] == [BothWays, Diagonal, BothWays]


def test_everything_else_is_what_it_was():
    dense = Dense(random(4, 4))
    entries = Diagonal(random(4), (4,))
    for op in (dense, dense.T, Sum(dense, entries), Scaled(random(), dense), Compose(entries, Compose(entries, dense))):
        same(op)
    assert prepare(dense) is dense
    flat = Reshape((4, 5, 5), (100,))
    same(Compose(flat, Compose(conv(stride=2).T, conv(stride=2))))
    same(Sum(conv(), Scaled(random(), conv())).T)
