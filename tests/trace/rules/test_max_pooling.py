"""Max pooling of any geometry: the values of torch, and the count of windows by brute force."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from lipkit.trace.network import Builder, Network
from lipkit.trace.nodes import WindowMax
from lipkit.trace.rules import Refusal
from lipkit.trace.rules.max_pooling import adaptive_max_pool, max_pool1d, max_pool2d


def pooled(rule, shape: tuple[int, ...], *geometry) -> Network:
    builder = Builder(shape)
    found = rule(builder, builder.source, *geometry)
    ref = found[0] if isinstance(found, tuple) else found
    return builder.finish(ref, ref.shape)


def node_of(network: Network) -> WindowMax:
    return next(node for node in network.nodes if isinstance(node, WindowMax))


def overlap(pool, space: tuple[int, ...]) -> int:
    """The largest number of outputs that one input can decide: make it the largest of all, and count."""
    size = math.prod(space)
    spikes = torch.eye(size, dtype=torch.float64).reshape(size, 1, *space)
    return int((pool(spikes) > 0).flatten(1).sum(1).max())


@st.composite
def geometries(draw: st.DrawFn) -> tuple[int, int, int, int, int, bool]:
    kernel = draw(st.integers(1, 4))
    size = draw(st.integers(1, 9))
    stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, kernel // 2))
    assume(size + 2 * padding >= dilation * (kernel - 1) + 1)
    return size, kernel, stride, padding, dilation, draw(st.booleans())


@settings(max_examples=40)
@given(geometries())
def test_one_axis_of_any_geometry(geometry: tuple[int, int, int, int, int, bool]):
    size, kernel, stride, padding, dilation, ceil = geometry

    def pool(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool1d(x, kernel, stride, padding, dilation, ceil)

    x = torch.randn(1, 2, size, dtype=torch.float64)
    if torch.isinf(pool(x)).any():
        with pytest.raises(Refusal, match="nothing but padding"):
            pooled(max_pool1d, (1, 2, size), [kernel], [stride], [padding], [dilation], ceil)
        return
    network = pooled(max_pool1d, (1, 2, size), [kernel], [stride], [padding], [dilation], ceil)
    assert torch.equal(network(x[None])[0], pool(x))
    assert node_of(network).count == overlap(pool, (size,))


@settings(max_examples=15)
@given(geometries(), geometries())
def test_two_axes_of_any_geometry(first: tuple, second: tuple):
    sizes, kernel, stride, padding, dilation = ([a, b] for a, b in zip(first[:5], second[:5], strict=True))

    def pool(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(x, kernel, stride, padding, dilation, first[5])

    x = torch.randn(1, 2, *sizes, dtype=torch.float64)
    assume(not torch.isinf(pool(x)).any())
    network = pooled(max_pool2d, (1, 2, *sizes), kernel, stride, padding, dilation, first[5])
    assert torch.equal(network(x[None])[0], pool(x))
    assert node_of(network).count == overlap(pool, tuple(sizes))


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 9))
def test_adaptive_pooling(size: int, out: int):
    network = pooled(adaptive_max_pool, (1, 2, size), [out])
    x = torch.randn(1, 2, size, dtype=torch.float64)
    assert torch.equal(network(x[None])[0], functional.adaptive_max_pool1d(x, out))
    assert node_of(network).count == overlap(lambda z: functional.adaptive_max_pool1d(z, out), (size,))


@pytest.mark.parametrize(("kernel", "stride", "constant"), [(2, 2, 1.0), (3, 2, 2.0), (3, 1, 3.0), (2, 1, 2.0)])
def test_known_constants(kernel: int, stride: int, constant: float):
    # Square windows in two dimensions: ceil(k / s) in l2, its square in l1, 1 in linf.
    node = node_of(pooled(max_pool2d, (1, 1, 9, 9), [kernel, kernel], [stride, stride]))
    assert node.log_constant(2.0).exp().item() == pytest.approx(constant, rel=1e-12)
    assert node.log_constant(1.0).exp().item() == pytest.approx(constant**2, rel=1e-12)
    assert node.log_constant(math.inf) == 0
