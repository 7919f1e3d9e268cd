"""Convolutions and transposed convolutions with constant kernels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit.linops import (
    BlockDiagonal,
    CircularConv,
    Conv,
    ConvExponential,
    ConvTranspose,
    LinearOperator,
    Padding,
    Reshape,
    Shape,
)
from lipkit.linops.conv_exponential import same_padding
from lipkit.linops.padding import Sides
from lipkit.trace.network import Builder, Ref, constant
from lipkit.trace.rules._registry import Sample, lowers

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _axes(value: int | Sequence[int], rank: int) -> Shape:
    many = (value,) if isinstance(value, int) else tuple(value)
    return many * rank if len(many) == 1 else many


def _spatial_and_count(x: Ref, rank: int) -> tuple[Shape, int | None]:
    """The spatial shape of an image or a batch of images, and the number of images (None: no batch axis)."""
    return x.shape[-rank:], x.shape[0] if len(x.shape) == rank + 2 else None


def apply_to_images(b: Builder, op: LinearOperator, x: Ref, many: int | None, bias: Tensor | None) -> Ref:
    """One operator on every image of a batch, and a bias for each channel."""
    if many is None:
        whole = op
    elif many == 1:
        whole = Reshape(op.out_shape, (1, *op.out_shape)) @ op @ Reshape(x.shape, op.in_shape)
    else:
        whole = BlockDiagonal((op,) * many)
    channels = None if bias is None else bias.reshape(-1, *(1,) * (len(op.out_shape) - 1))
    return b.linear(whole, x, channels)


@lowers(
    aten.conv1d.default,
    samples=lambda: [
        Sample((_x(1, 4, 7), _x(6, 2, 3), _x(6), [2], [1], [2], 2)),
        Sample((_x(2, 3, 5), _x(2, 3, 2))),
        Sample((_x(3, 5), _x(2, 3, 2), None, [1], [0])),
    ],
)
@lowers(
    aten.conv2d.default,
    samples=lambda: [
        Sample((_x(1, 4, 5, 6), _x(6, 2, 3, 2), _x(6), [2, 1], [1, 0], [1, 2], 2)),
        Sample((_x(1, 3, 5, 4), _x(3, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 3)),
        Sample((_x(2, 1, 3, 3), _x(2, 1, 2, 2), _x(2))),
    ],
)
@lowers(aten.conv3d.default, samples=lambda: [Sample((_x(1, 2, 3, 4, 3), _x(3, 2, 2, 2, 2), _x(3), [1], [1]))])
def conv(
    b: Builder,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Ref:
    """A convolution with zero padding."""
    weight = constant(weight, "the kernel")
    rank = weight.ndim - 2
    x, sides, mode = _value_before_padding(b, x, tuple((p, p) for p in _axes(padding, rank)))
    spatial, many = _spatial_and_count(x, rank)
    op = Conv(weight, spatial, _axes(stride, rank), sides, _axes(dilation, rank), groups, mode)
    return apply_to_images(b, op, x, many, constant(bias, "the bias"))


def _value_before_padding(b: Builder, x: Ref, sides: Sides) -> tuple[Ref, Sides, Padding]:
    """The value before a padding that the convolution can do itself, and the padding it then has to do.

    Such a convolution keeps its symbol, which one behind a gather has not.
    """
    before = b.padded(x)
    own = any(any(pair) for pair in sides)
    if before is None or len(before.sides) > len(sides) or (own and before.mode is not Padding.ZEROS):
        return x, sides, Padding.ZEROS
    missing = ((0, 0),) * (len(sides) - len(before.sides))
    pairs = zip((*missing, *before.sides), sides, strict=True)
    return before.inner, tuple((a + c, d + e) for (a, d), (c, e) in pairs), before.mode


@lowers(
    aten.conv1d.padding,
    samples=lambda: [
        Sample((_x(1, 4, 7), _x(6, 2, 4), _x(6), [1], "same", [1], 2)),
        Sample((_x(1, 4, 7), _x(6, 4, 4), None, [2], "valid")),
    ],
)
@lowers(aten.conv2d.padding, samples=lambda: [Sample((_x(1, 2, 4, 5), _x(3, 2, 2, 3), _x(3), [1, 1], "same", [2, 1]))])
@lowers(aten.conv3d.padding, samples=lambda: [Sample((_x(1, 2, 3, 3, 3), _x(1, 2, 2, 3, 1), None, [1], "same"))])
def conv_named(
    b: Builder,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Ref:
    """A convolution whose padding is "same" or "valid"; an odd rest goes to the end, as in torch."""
    weight = constant(weight, "the kernel")
    rank = weight.ndim - 2
    taps = _axes(dilation, rank)
    spare = [d * (k - 1) if padding == "same" else 0 for k, d in zip(weight.shape[2:], taps, strict=True)]
    x, sides, mode = _value_before_padding(b, x, tuple((total // 2, total - total // 2) for total in spare))
    spatial, many = _spatial_and_count(x, rank)
    op = Conv(weight, spatial, _axes(stride, rank), sides, taps, groups, mode)
    return apply_to_images(b, op, x, many, constant(bias, "the bias"))


@lowers(
    aten.conv_transpose1d.default,
    samples=lambda: [Sample((_x(1, 4, 5), _x(4, 3, 3), _x(6), [2], [1], [1], 2, [2])), Sample((_x(2, 5), _x(2, 1, 2)))],
)
@lowers(
    aten.conv_transpose2d.input,
    samples=lambda: [
        Sample((_x(1, 4, 3, 4), _x(4, 3, 3, 2), _x(6), [2, 1], [1, 0], [1, 0], 2, [1, 2])),
        Sample((_x(2, 1, 3, 3), _x(1, 2, 2, 2), _x(2))),
    ],
)
@lowers(aten.conv_transpose3d.input, samples=lambda: [Sample((_x(1, 2, 2, 3, 2), _x(2, 1, 2, 2, 2), _x(1), [2]))])
def conv_transpose(
    b: Builder,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Ref:
    """A transposed convolution."""
    weight = constant(weight, "the kernel")
    rank = weight.ndim - 2
    spatial, many = _spatial_and_count(x, rank)
    step, edge, rest, taps = (_axes(value, rank) for value in (stride, padding, output_padding, dilation))
    op = ConvTranspose(weight, spatial, step, edge, rest, taps, groups)
    return apply_to_images(b, op, x, many, constant(bias, "the bias"))


@lowers(
    aten.convolution.default,
    samples=lambda: [
        Sample((_x(1, 4, 5, 6), _x(6, 2, 3, 2), _x(6), [2, 1], [1, 0], [1, 2], False, [0, 0], 2)),
        Sample((_x(1, 4, 3, 4), _x(4, 3, 3, 2), _x(6), [2, 1], [1, 0], [1, 2], True, [1, 0], 2)),
    ],
)
def convolution(
    b: Builder,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Ref:
    """Either of the two, by a flag."""
    if transposed:
        return conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, x, weight, bias, stride, padding, dilation, groups)


@lowers(
    torch.ops.lipkit.circular_convolution.default,
    samples=lambda: [
        Sample((_x(1, 4, 5), _x(6, 2, 5), 2)),
        Sample((_x(1, 2, 3, 4), _x(3, 2, 3, 4), 1)),
        Sample((_x(2, 3, 4), _x(3, 2, 3, 4), 1)),
    ],
)
def circular_convolution(b: Builder, x: Any, weight: Any, groups: int) -> Ref:
    """A circular convolution with a kernel as large as the image, which layers write as one operation to be read."""
    weight = constant(weight, "the kernel")
    _, many = _spatial_and_count(x, weight.ndim - 2)
    return apply_to_images(b, CircularConv(weight, groups), x, many, None)


@lowers(
    torch.ops.lipkit.convolution_exponential.default,
    samples=lambda: [
        Sample((_x(1, 4, 5), _x(4, 2, 3), [1], 2, False, 3)),
        Sample((_x(1, 2, 5, 4), _x(2, 2, 3, 1), [2, 1], 1, True, 2)),
        Sample((_x(2, 3, 4), _x(2, 2, 3, 3), [1, 1], 1, False, 2)),
    ],
)
def convolution_exponential(
    b: Builder, x: Any, weight: Any, dilation: Sequence[int], groups: int, circular: bool, degree: int
) -> Ref:
    """The exponential series of a convolution, which layers write as one operation to be read."""
    weight = constant(weight, "the kernel")
    rank = weight.ndim - 2
    spatial, many = _spatial_and_count(x, rank)
    step, mode = _axes(dilation, rank), Padding.CIRCULAR if circular else Padding.ZEROS
    sides = same_padding(tuple(weight.shape[2:]), step)
    op = ConvExponential(Conv(weight, spatial, (1,) * rank, sides, step, groups, mode), degree)
    return apply_to_images(b, op, x, many, None)
