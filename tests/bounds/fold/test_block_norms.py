"""What is left out before a norm is taken does not change the norm; what would change it is not left out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import Metric
from lipkit.bounds import DAG, Product
from lipkit.bounds.fold.block_norms import core
from lipkit.linops import (
    AvgPool,
    BatchNorm,
    BlockRow,
    Conv,
    Dense,
    Index,
    LinearOperator,
    Permute,
    Reshape,
    materialize,
    pad,
    product,
)
from lipkit.norms import Auto, Norm
from lipkit.trace import Network
from lipkit.trace.nodes import RELU, Pointwise
from lipkit.trace.rewrites.fuse import EveryOp, Junctions, Nowhere

SEEDS = st.integers(0, 10**9)


def norm(op: LinearOperator, p: float) -> float:
    return float(np.linalg.norm(materialize(op.to(torch.float64)).numpy(), p))


def batch_norm(rng: np.random.Generator, channels: int, *spatial: int) -> BatchNorm:
    weight, variance = rng.normal(size=channels), rng.uniform(0.1, 4, size=channels)
    return BatchNorm(torch.from_numpy(weight), torch.from_numpy(variance), 1e-5, (channels, *spatial))


def conv(rng: np.random.Generator, c_in: int, c_out: int, kernel: int, spatial: tuple[int, int]) -> Conv:
    weight = torch.from_numpy(rng.normal(size=(c_out, c_in, kernel, kernel)))
    side = kernel // 2
    return Conv(weight, spatial, (1, 1), ((side, side), (side, side)), (1, 1))


def joined(seed: int, scaled: bool, batch_axis: bool) -> LinearOperator:
    """A convolution whose output is one part of a concatenation, with a batch norm behind it or without."""
    rng = np.random.default_rng(seed)
    channels, before, after = (int(n) for n in rng.integers(1, 4, size=3))
    spatial = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
    inner = conv(rng, int(rng.integers(1, 4)), channels, 3, spatial)
    shape = (1, channels, *spatial) if batch_axis else inner.out_shape
    place = pad(shape, ((before, after), (0, 0), (0, 0)))
    op = product(place, product(Reshape(inner.out_shape, shape), inner))
    if not scaled:
        return op
    scale = batch_norm(rng, before + channels + after, *spatial)
    return product(scale, product(Reshape(op.out_shape, scale.in_shape), op))


@settings(max_examples=40)
@given(SEEDS, st.sampled_from([1.0, 2.0, math.inf]), st.booleans(), st.booleans())
def test_a_part_of_a_concatenation_has_the_norm_of_its_convolution(seed: int, p: float, scaled: bool, batch_axis: bool):
    op = joined(seed, scaled, batch_axis)
    found = core(op, euclidean=p == 2)
    assert found.out_size < op.out_size
    # Dense norms of matrices of at most 64 x 48: a few units in the last place.
    assert norm(found, p) == pytest.approx(norm(op, p), rel=1e-12)


@settings(max_examples=25)
@given(SEEDS, st.sampled_from([(2, 2), (1, 4), (4, 4), (3, 3), (1, 2)]), st.booleans())
def test_averages_over_disjoint_windows_are_a_factor(seed: int, kernel: tuple[int, int], scaled: bool):
    rng = np.random.default_rng(seed)
    spatial = (kernel[0] * int(rng.integers(1, 3)), kernel[1] * int(rng.integers(1, 3)))
    c_in, c_out = (int(n) for n in rng.integers(1, 4, size=2))
    mix = conv(rng, c_in, c_out, 1, spatial)
    pool = AvgPool(c_out, spatial, kernel, kernel, (0, 0), math.prod(kernel))
    op = product(pool, mix)
    if scaled:
        op = product(batch_norm(rng, *op.out_shape), op)
    found = core(op, euclidean=True)
    # The factor is 1/2 or 1/4 or is left alone: other roots would be rounded.
    assert (found is op) == (math.prod(kernel) not in (4, 16))
    assert norm(found, 2) == pytest.approx(norm(op, 2), rel=1e-12)
    assert core(op, euclidean=False) is op


def test_what_would_change_the_norm_stays():
    rng = np.random.default_rng(0)
    mix = conv(rng, 2, 2, 1, (4, 4))
    blur = conv(rng, 2, 2, 3, (4, 4))
    flat = torch.arange(32).reshape(2, 4, 4)
    scale = batch_norm(rng, 2, 4, 4)
    overlapping = AvgPool(2, (4, 4), (2, 2), (1, 1), (0, 0), 4)
    uncovered = AvgPool(2, (4, 4), (2, 2), (2, 2), (1, 1), 4)
    disjoint = AvgPool(2, (4, 4), (2, 2), (2, 2), (0, 0), 4)
    for op in (
        product(Index(flat.clamp(max=30), (2, 4, 4)), mix),  # one entry lost, one twice
        product(Index(flat[:1], (2, 4, 4)), mix),  # half of the entries lost
        product(Index(torch.cat([flat, flat]), (2, 4, 4)), mix),  # all twice
        product(scale, product(Index(flat.flip(0), (2, 4, 4)), mix)),  # channels in another order
        product(scale, product(Index(flat.mT.contiguous(), (2, 4, 4)), mix)),
        product(scale, product(Permute((2, 4, 4), (0, 2, 1)), mix)),
        product(overlapping, mix),
        product(uncovered, mix),
        product(disjoint, blur),
        mix,
    ):
        assert core(op, euclidean=True) is op


def test_gradients_pass_through_what_was_left_out():
    op = joined(3, scaled=True, batch_axis=True)
    tensors = [t for t in op.tensors() if t.is_floating_point()]

    def value(weight: torch.Tensor) -> torch.Tensor:
        return Auto()(core(op.map(lambda t: weight if t is tensors[0] else t), euclidean=True)).log_value

    assert torch.autograd.gradcheck(value, [tensors[0].clone().requires_grad_()], fast_mode=True)


class Counting(Norm):
    """Automatic norms, and a note of what was asked for as one row."""

    def __init__(self) -> None:
        self.rows = 0

    def _batch(self, ops, state):
        self.rows += sum(isinstance(op, BlockRow) for op in ops)
        return Auto()._batch(ops, state)


def dense_block(layers: int, seed: int = 0) -> Network:
    """Layers that read all earlier values through a concatenation, a batch norm, ReLU, and two convolutions."""
    rng = np.random.default_rng(seed)
    shape, growth, width = (3, 4, 4), 2, 4
    values, shapes, nodes, blocks = [0], [shape], list[Pointwise](), dict[tuple[int, int], LinearOperator]()
    for layer in range(layers + 1):
        total = sum(s[0] for s in shapes)
        offset, row = 0, len(nodes) + 1
        scale = batch_norm(rng, total, 4, 4)
        for j, s in zip(values, shapes, strict=True):
            part = pad(s, ((offset, total - offset - s[0]), (0, 0), (0, 0)))
            if j:
                part = product(part, conv(rng, width, growth, 3, (4, 4)))
            blocks[row, j] = product(scale, part)
            offset += s[0]
        nodes.append(Pointwise(RELU, (total, 4, 4)))
        if layer == layers:
            blocks[row + 1, row] = Dense(torch.from_numpy(rng.normal(size=(5, total * 16)))) @ Reshape(
                (total, 4, 4), (total * 16,)
            )
            return Network(shape, tuple(nodes), blocks, target=(5,))
        blocks[row + 1, row] = conv(rng, total, width, 1, (4, 4))
        nodes.append(Pointwise(RELU, (width, 4, 4)))
        values.append(row + 1)
        shapes.append((growth, 4, 4))
    raise AssertionError("unreachable: the last layer returns")


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_a_dense_block_is_folded_by_the_p_sums_of_its_parts(p: float):
    network, counting = dense_block(3), Counting()
    bound = DAG(norm=counting, metric=Metric(p, p))(network)
    # By hand, from dense norms: every row is a concatenation, so the p-sum of its parts is the fold.
    out = [1.0]
    for row in network.rows().values():
        terms = [norm(op, p) * out[j] for j, op in row.items()]
        out.append(float(np.linalg.norm(terms, p)))
    # Norms of matrices this small are exact to 1e-6, the accuracy asked of Cholesky; eight of them are multiplied.
    assert float(bound.value) == pytest.approx(out[-1], rel=1e-5)
    assert float(bound.value) >= out[-1] * (1 - 1e-12)
    assert counting.rows == 0
    for cut in (EveryOp(), Junctions(), Nowhere()):
        assert float(bound.value) <= float(DAG(cut=cut, metric=Metric(p, p))(network).value) * (1 + 1e-5)
    assert float(bound.value) <= float(Product(metric=Metric(p, p))(network).value) * (1 + 1e-5)
