"""Every bad input to an operator is refused by one sentence that says what was there and what was expected."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipkit.errors import ArgumentError, LipkitError, ShapeError, TooLargeError
from lipkit.linops import (
    AvgPool,
    BatchNorm,
    BlockColumn,
    BlockDiagonal,
    BlockRow,
    Conv,
    ConvTranspose,
    Dense,
    Diagonal,
    Index,
    LinearFunction,
    Padding,
    Permute,
    Reshape,
    flip,
    materialize,
    pad,
    select,
    stack,
)


def dense(rows: int, columns: int) -> Dense:
    return Dense(torch.ones(rows, columns))


def conv(
    weight: tuple[int, ...] = (4, 2, 3),
    spatial: tuple[int, ...] = (5,),
    stride: tuple[int, ...] = (1,),
    padding: tuple[tuple[int, int], ...] = ((0, 0),),
    dilation: tuple[int, ...] = (1,),
    groups: int = 1,
    mode: Padding = Padding.ZEROS,
) -> Conv:
    return Conv(torch.ones(weight), spatial, stride, padding, dilation, groups, mode)


def transpose(
    weight: tuple[int, ...] = (4, 2, 3),
    spatial: tuple[int, ...] = (5,),
    stride: tuple[int, ...] = (2,),
    padding: tuple[int, ...] = (0,),
    output_padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    groups: int = 1,
) -> ConvTranspose:
    return ConvTranspose(torch.ones(weight), spatial, stride, padding, output_padding, dilation, groups)


def pool(
    channels: int = 1,
    spatial: tuple[int, ...] = (5,),
    kernel: tuple[int, ...] = (2,),
    stride: tuple[int, ...] = (1,),
    padding: tuple[int, ...] = (0,),
    divisor: int = 2,
) -> AvgPool:
    return AvgPool(channels, spatial, kernel, stride, padding, divisor)


def norm(weight: Tensor | None, variance: int, eps: float, *shape: int) -> BatchNorm:
    return BatchNorm(weight, torch.ones(variance), eps, shape)


CASES: list[tuple[Callable[[], object], type[LipkitError], str]] = [
    (lambda: dense(2, 3).apply(torch.ones(4)), ShapeError, "apply expects (*batch, 3), got (4,)."),
    (lambda: dense(2, 3).adjoint(torch.ones(5, 3)), ShapeError, "adjoint expects (*batch, 2), got (5, 3)."),
    (
        lambda: dense(2, 3) @ dense(2, 3),
        ShapeError,
        "Cannot compose: the inner operator ends in (2,), the outer one starts in (3,).",
    ),
    (
        lambda: dense(2, 3) + dense(3, 2),
        ShapeError,
        "Cannot add Dense (3,) -> (2,) and Dense (2,) -> (3,): both shapes must agree.",
    ),
    (lambda: conv(spatial=(5, 5)), ShapeError, "spatial needs 1 numbers, one for each spatial axis, got (5, 5)."),
    (lambda: conv(spatial=(0,)), ArgumentError, "spatial must be at least 1 on every axis, got (0,)."),
    (lambda: conv(stride=(0,)), ArgumentError, "stride must be at least 1 on every axis, got (0,)."),
    (lambda: conv(stride=(1, 1)), ShapeError, "stride needs 1 numbers, one for each spatial axis, got (1, 1)."),
    (lambda: conv(dilation=(0,)), ArgumentError, "dilation must be at least 1 on every axis, got (0,)."),
    (
        lambda: conv(padding=((1, 1), (1, 1))),
        ShapeError,
        "padding needs 1 pairs (left, right), one for each spatial axis, got ((1, 1), (1, 1)).",
    ),
    (
        lambda: conv(padding=((-1, 0),)),
        ArgumentError,
        "padding must not be negative, got (-1, 0); crop with lipkit.linops.select.",
    ),
    (lambda: conv(groups=3), ArgumentError, "groups must be positive and divide the 4 output channels, got 3."),
    (lambda: conv(groups=0), ArgumentError, "groups must be positive and divide the 4 output channels, got 0."),
    (
        lambda: conv(spatial=(2,)),
        ShapeError,
        "The dilated kernel (3,) is larger than the padded input (2,); pad more or use a smaller kernel.",
    ),
    (
        lambda: conv(dilation=(3,)),
        ShapeError,
        "The dilated kernel (7,) is larger than the padded input (5,); pad more or use a smaller kernel.",
    ),
    (
        lambda: conv(weight=(4, 2)),
        ShapeError,
        "A convolution weight has 3, 4 or 5 axes (two of channels, the rest of space), got shape (4, 2).",
    ),
    (lambda: conv(weight=(4, 0, 3)), ShapeError, "A convolution weight must not be empty, got shape (4, 0, 3)."),
    (
        lambda: conv(padding=((5, 0),), mode=Padding.REFLECT),
        ShapeError,
        "Reflect padding must be smaller than the axis, got (5, 0) on length 5; pad less or use Padding.REPLICATE.",
    ),
    (
        lambda: conv(padding=((0, 6),), mode=Padding.CIRCULAR),
        ShapeError,
        "Circular padding must be at most the axis, got (0, 6) on length 5; pad less or pad twice.",
    ),
    (lambda: transpose(groups=3), ArgumentError, "groups must be positive and divide the 4 input channels, got 3."),
    (lambda: transpose(padding=(-1,)), ArgumentError, "padding must be at least 0 on every axis, got (-1,)."),
    (
        lambda: transpose(output_padding=(2,)),
        ArgumentError,
        "output_padding must be smaller than the stride (2,) or the dilation (1,) on every axis, got (2,).",
    ),
    (
        lambda: transpose(padding=(6,)),
        ShapeError,
        "The output would have spatial shape (-1,); lower the padding (6,).",
    ),
    (
        lambda: Diagonal(torch.ones(3), (2, 4)),
        ShapeError,
        "The scale of a Diagonal must broadcast to (2, 4), got (3,).",
    ),
    (
        lambda: Diagonal(torch.ones(2, 4), (4,)),
        ShapeError,
        "The scale of a Diagonal must broadcast to (4,), got (2, 4).",
    ),
    (
        lambda: norm(None, 2, 0.1, 3, 4),
        ShapeError,
        "BatchNorm on shape (3, 4) needs one variance for each channel, got shape (2,).",
    ),
    (lambda: norm(None, 3, -0.1, 3), ArgumentError, "eps must not be negative, got -0.1."),
    (
        lambda: pool(divisor=0),
        ArgumentError,
        "The divisor of AvgPool must not be 0; the window size is the usual choice.",
    ),
    (
        lambda: pool(spatial=()),
        ArgumentError,
        "AvgPool works on 1, 2 or 3 spatial axes, got spatial shape ().",
    ),
    (lambda: pool(channels=0), ArgumentError, "channels must be at least 1, got 0."),
    (
        lambda: pool(kernel=(6,)),
        ShapeError,
        "The dilated kernel (6,) is larger than the padded input (5,); pad more or use a smaller kernel.",
    ),
    (
        lambda: Reshape((2, 3), (5,)),
        ShapeError,
        "Cannot reshape (2, 3) to (5,): the numbers of entries differ.",
    ),
    (
        lambda: Permute((2, 3), (0, 0)),
        ArgumentError,
        "The order of Permute must list the axes 0..1 once each, got (0, 0).",
    ),
    (
        lambda: Index(torch.tensor([0, 6]), (2, 3)),
        ArgumentError,
        "The positions of Index in (2, 3) must lie in -1..5, got 0..6.",
    ),
    (
        lambda: Index(torch.tensor([-2, 1]), (2, 3)),
        ArgumentError,
        "The positions of Index in (2, 3) must lie in -1..5, got -2..1.",
    ),
    (
        lambda: pad((3,), ((1, 1), (1, 1))),
        ShapeError,
        "padding has 2 pairs, but the shape (3,) has 1 axes.",
    ),
    (lambda: pad((3,), ((-2, -2),)), ShapeError, "The padding ((-2, -2),) crops more than the last axes of (3,) have."),
    (
        lambda: pad((3,), ((-1, 1),), Padding.CIRCULAR),
        ArgumentError,
        "padding must not be negative, got (-1, 1); crop with lipkit.linops.select.",
    ),
    (lambda: select((3, 2), (0, 5)), ShapeError, "Cannot select (0, 5) from shape (3, 2): "),
    (lambda: flip((3, 2), (2,)), ShapeError, "Cannot flip the axes (2,) of shape (3, 2): "),
    (
        lambda: LinearFunction(torch.neg, (3,), (2,)).apply(torch.ones(3)),
        ShapeError,
        "The callable of LinearFunction gave (1, 3), expected (batch, *target) = (1, 2).",
    ),
    (lambda: BlockRow(()), ArgumentError, "BlockRow needs at least one operator, got none."),
    (
        lambda: BlockRow((dense(2, 3), dense(3, 3))),
        ShapeError,
        "The parts of BlockRow must have one out_shape, got [(2,), (3,)].",
    ),
    (
        lambda: BlockColumn((dense(2, 3), dense(2, 2))),
        ShapeError,
        "The parts of BlockColumn must have one in_shape, got [(2,), (3,)].",
    ),
    (
        lambda: BlockDiagonal((dense(2, 3), dense(3, 3))),
        ShapeError,
        "The parts of BlockDiagonal must have one out_shape, got [(2,), (3,)].",
    ),
    (lambda: stack([]), ArgumentError, "stack needs at least one operator, got none."),
    (
        lambda: stack([dense(2, 3), dense(3, 3)]),
        ArgumentError,
        "stack needs operators of one signature, got 2 different ones; group them by signature.",
    ),
    (
        lambda: materialize(Reshape((2, 3), (6,)), limit=35),
        TooLargeError,
        "The matrix of Reshape (2, 3) -> (6,) would have 6 x 6 = 36 entries, the limit is 35; "
        "use the matrix-free Lanczos, or raise the limit.",
    ),
]


@pytest.mark.parametrize(("action", "kind", "message"), CASES, ids=[message for _, _, message in CASES])
def test_refused_by_one_sentence(action: Callable[[], object], kind: type[LipkitError], message: str) -> None:
    with pytest.raises(kind) as caught:
        action()
    # Sentences that quote torch continue in its words, the others are compared whole.
    text = str(caught.value)
    assert text.startswith(message) if message.endswith(": ") else text == message
