"""Max pooling."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Shape
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.nodes.window_maxima import WindowMax
from lipkit.trace.rules._registry import Sample, lowers

aten = torch.ops.aten
Pair = tuple[Ref, None]
Numbers = Sequence[int]


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _pool(b: Builder, x: Ref, rank: int, windows: Tensor, out: Shape) -> Ref:
    """The maxima over windows of the last `rank` axes, given as (windows, width) flat positions."""
    kept, space = x.shape[: len(x.shape) - rank], x.shape[len(x.shape) - rank :]
    y = b.node(WindowMax((*kept, math.prod(space)), windows), b.reshape(x, (*kept, math.prod(space))))
    return b.reshape(y, (*kept, *out))


def _windows(space: Shape, axes: list[list[list[int]]]) -> Tensor:
    """Flat positions of the products of the windows of every axis; a short window repeats its first place."""
    found = torch.zeros((1, 1), dtype=torch.int64)
    for size, windows in zip(space, axes, strict=True):
        width = max(map(len, windows))
        # Repetitions count once, so a window at the border is filled up with a position that it has.
        places = torch.tensor([window + window[:1] * (width - len(window)) for window in windows])
        found = (found[:, None, :, None] * size + places[None, :, None, :]).flatten(2).flatten(0, 1)
    return found


def _max_pool(
    b: Builder, x: Ref, rank: int, kernel: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers, ceil: bool
) -> Ref:
    """Padding is -inf and never wins, so windows hold the positions inside only; torch says how many there are."""
    kernel, padding, dilation = (_per_axis(v, rank) for v in (kernel, padding, dilation))
    stride = _per_axis(stride or kernel, rank)
    space = x.shape[len(x.shape) - rank :]
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[rank - 1]
    out = tuple(pool(torch.zeros(1, *space), kernel, stride, padding, dilation, ceil).shape[1:])
    axes = [
        [[i for t in range(k) if 0 <= (i := w * s - p + t * d) < n] for w in range(count)]
        for n, k, s, p, d, count in zip(space, kernel, stride, padding, dilation, out, strict=True)
    ]
    if not all(window for windows in axes for window in windows):
        raise Refusal("a window holds nothing but padding, so its result is -inf", "pad less, or dilate less")
    return _pool(b, x, rank, _windows(space, axes), out)


def _per_axis(values: Numbers, rank: int) -> Shape:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


@lowers(
    aten.max_pool1d.default,
    samples=lambda: [
        Sample((_x(1, 2, 9), [3], [2], [1])),
        Sample((_x(2, 9), [2], [], [0], [3])),
        Sample((_x(1, 2, 8), [3], [3], [0], [1], True)),
    ],
)
def max_pool1d(
    b: Builder,
    x: Ref,
    kernel_size: Numbers,
    stride: Numbers = (),
    padding: Numbers = (0,),
    dilation: Numbers = (1,),
    ceil_mode: bool = False,
) -> Ref:
    """Lip = count^(1/p), with the largest number of windows over one input at this size."""
    return _max_pool(b, x, 1, kernel_size, stride, padding, dilation, ceil_mode)


@lowers(
    aten.max_pool2d.default,
    samples=lambda: [
        Sample((_x(1, 2, 6, 5), [3, 3], [2, 2], [1, 1])),
        Sample((_x(1, 2, 6, 7), [2, 3], [2, 1], [0, 1], [2, 1], True)),
        Sample((_x(1, 2, 6, 6), [2])),
    ],
)
def max_pool2d(
    b: Builder,
    x: Ref,
    kernel_size: Numbers,
    stride: Numbers = (),
    padding: Numbers = (0,),
    dilation: Numbers = (1,),
    ceil_mode: bool = False,
) -> Ref:
    """Lip = count^(1/p), with the largest number of windows over one input at this size."""
    return _max_pool(b, x, 2, kernel_size, stride, padding, dilation, ceil_mode)


@lowers(aten.max_pool3d.default, samples=lambda: [Sample((_x(1, 2, 4, 3, 4), [2, 2, 2], [2, 1, 2], [1, 0, 1]))])
def max_pool3d(
    b: Builder,
    x: Ref,
    kernel_size: Numbers,
    stride: Numbers = (),
    padding: Numbers = (0,),
    dilation: Numbers = (1,),
    ceil_mode: bool = False,
) -> Ref:
    """Lip = count^(1/p), with the largest number of windows over one input at this size."""
    return _max_pool(b, x, 3, kernel_size, stride, padding, dilation, ceil_mode)


@lowers(aten.max_pool1d_with_indices.default, samples=lambda: [Sample((_x(1, 2, 9), [3], [2], [1]))])
def max_pool1d_with_indices(b: Builder, x: Ref, *geometry: Any) -> Pair:
    """The same; positions are refused."""
    return max_pool1d(b, x, *geometry), None


@lowers(aten.max_pool2d_with_indices.default, samples=lambda: [Sample((_x(1, 2, 6, 5), [3, 3], [2, 2], [1, 1]))])
def max_pool2d_with_indices(b: Builder, x: Ref, *geometry: Any) -> Pair:
    """The same; positions are refused."""
    return max_pool2d(b, x, *geometry), None


@lowers(aten.max_pool3d_with_indices.default, samples=lambda: [Sample((_x(1, 2, 4, 3, 4), [2, 2, 2]))])
def max_pool3d_with_indices(b: Builder, x: Ref, *geometry: Any) -> Pair:
    """The same; positions are refused."""
    return max_pool3d(b, x, *geometry), None


@lowers(aten.adaptive_max_pool1d.default, samples=lambda: [Sample((_x(1, 2, 7), [3])), Sample((_x(1, 2, 3), [5]))])
@lowers(
    aten.adaptive_max_pool2d.default, samples=lambda: [Sample((_x(1, 2, 7, 5), [3, 2])), Sample((_x(2, 4, 4), [1, 1]))]
)
@lowers(aten.adaptive_max_pool3d.default, samples=lambda: [Sample((_x(1, 2, 4, 3, 4), [3, 2, 1]))])
def adaptive_max_pool(b: Builder, x: Ref, output_size: Numbers) -> Pair:
    """Window w of an axis is floor(w n / m) up to ceil((w + 1) n / m); they overlap where m does not divide n."""
    rank, out = len(output_size), tuple(output_size)
    space = x.shape[len(x.shape) - rank :]
    axes = [[list(range(w * n // m, -(-(w + 1) * n // m))) for w in range(m)] for n, m in zip(space, out, strict=True)]
    return _pool(b, x, rank, _windows(space, axes), out), None
