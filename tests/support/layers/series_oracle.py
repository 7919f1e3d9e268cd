"""The matrix of a layer that applies an exponential series, from powers of a matrix: no code of the library is used."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Padding, Shape

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def series_matrix(layer: Any, in_shape: Shape) -> Tensor:
    """The matrix in float64; of a transposed layer, the transpose of that of the convolution on its outputs."""
    g = layer.geometry
    weight = layer.weight.detach().to(torch.float64)
    if not g.transposed:
        return _convolution(weight, g, in_shape[1:])[1]
    axes = zip(in_shape[1:], g.stride, g.padding, g.dilation, g.taps, g.output_padding, strict=True)
    spatial = tuple((n - 1) * s - sum(p) + d * (k - 1) + rest + 1 for n, s, p, d, k, rest in axes)
    sizes, matrix = _convolution(weight, g, spatial)
    # With much output padding the convolution has windows that the layer has no inputs for.
    rows = torch.arange(len(matrix)).reshape(g.groups * g.rows, *sizes)
    kept = rows[(slice(None), *(slice(n) for n in in_shape[1:]))]
    return matrix[kept.flatten()].mT


def _convolution(weight: Tensor, g: Any, spatial: Shape) -> tuple[Shape, Tensor]:
    side = max(g.rows, g.cols)
    own = [d * (k - 1) // 2 for d, k in zip(g.dilation, g.taps, strict=True)]
    more = [(left - o, right - o) for (left, right), o in zip(g.padding, own, strict=True)]
    middle = [n + max(a, 0) + max(b, 0) for n, (a, b) in zip(spatial, more, strict=True)]
    size = g.groups * side * math.prod(middle)
    images = torch.eye(size, dtype=torch.float64).reshape(size, g.groups * side, *middle)
    if g.mode is Padding.CIRCULAR:
        images = functional.pad(images, [o for o in reversed(own) for _ in range(2)], mode="circular")
        own = [0] * len(own)
    power = CONV[len(own)](images, weight, None, 1, own, g.dilation, g.groups).reshape(size, size).mT
    total, term = torch.eye(size, dtype=torch.float64), torch.eye(size, dtype=torch.float64)
    for j in range(1, g.series + 1):
        term = term @ power / j
        total = total + term
    numbers = torch.arange(size).reshape(g.groups * side, *middle)

    def channels(count: int) -> list[int]:
        return [group * side + c for group, c in itertools.product(range(g.groups), range(count))]

    inside = (slice(max(a, 0), max(a, 0) + n) for n, (a, _) in zip(spatial, more, strict=True))
    columns = numbers[(channels(g.cols), *inside)]
    kept = zip(more, g.stride, middle, strict=True)
    rows = numbers[(channels(g.rows), *(slice(max(-a, 0), n - max(-b, 0), s) for (a, b), s, n in kept))]
    return tuple(rows.shape[1:]), total[rows.flatten()][:, columns.flatten()]
