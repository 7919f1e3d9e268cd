"""How much larger than |x| |g| the gradient of a kernel can be, by counting who reads what."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from lipkit.linops import Conv, ConvTranspose
from lipkit.linops.padding import positions

# Which input each (output, tap) reads on one axis; -1 where it reads a zero.
Table = Int64[Tensor, "outputs taps"]


class Counts(NamedTuple):
    """On one axis: the most (output, tap) pairs that read one input, the most outputs at which one tap reads one
    input, and the most taps that feed one output."""

    readers: int
    repeats: int
    taps: int

    @property
    def square(self) -> int:
        """The square of the factor of this axis."""
        return min(self.readers, self.repeats * self.taps)


def kernel_factor(op: Conv | ConvTranspose) -> float:
    """f with |d loss / d kernel|_2 <= f |x|_2 |g|_2 for all x and g, for y = kernel * x and g = d loss / d y:

        f^2 = product over the axes of min(r, m t),

    r = the most (output, tap) pairs that read one input, m = the most outputs at which one tap reads one input, t = the
    most taps that feed one output. The matrix x_(i, a) of what output i reads through tap a has a Frobenius norm of at
    most sqrt(r) |x|, and |sum_a k_a x_(i, a)|^2 <= t sum_a k_a^2 x_(i, a)^2 sums up to m t |k|^2 |x|^2. Norms of rows
    take the place of entries, so axes multiply, and so do channels and groups, with factor 1.

    Guarantee: an upper bound for every stride, dilation, padding mode and number of groups; attained for circular
    padding with stride 1, sqrt of the number of taps. Transposed convolutions have the factor of the convolution that
    they transpose. Cost: a table of outputs and taps for each axis. Ours; Béthune 2024 has sqrt(taps) for zero and
    circular padding.
    """
    return math.sqrt(math.prod(count_axis(table).square for table in _tables(op)))


def count_axis(table: Table) -> Counts:
    """The three counts of one axis."""
    reads = table >= 0
    if not bool(reads.any()):
        return Counts(0, 0, 0)
    columns = [column[column >= 0].bincount() for column in table.unbind(1)]
    repeats = max(int(counts.max()) for counts in columns if len(counts))
    return Counts(int(table[reads].bincount().max()), repeats, int(reads.sum(1).max()))


def _tables(op: Conv | ConvTranspose) -> list[Table]:
    if isinstance(op, Conv):
        axes = zip(op.spatial, op.padding, op.out_shape[1:], op.kernel, op.stride, op.dilation, strict=True)
        return [
            positions(size, sides, op.mode)[_places(outputs, taps, stride, dilation)]
            for size, sides, outputs, taps, stride, dilation in axes
        ]
    # As the convolution that it transposes: the larger image is read, the smaller one written.
    axes = zip(op.spatial, op.padding, op.out_shape[1:], op.kernel, op.stride, op.dilation, strict=True)
    found: list[Table] = []
    for size, padding, wide, taps, stride, dilation in axes:
        at = _places(size, taps, stride, dilation) - padding
        found.append(torch.where((at >= 0) & (at < wide), at, -1))
    return found


def _places(outputs: int, taps: int, stride: int, dilation: int) -> Table:
    return stride * torch.arange(outputs)[:, None] + dilation * torch.arange(taps)
