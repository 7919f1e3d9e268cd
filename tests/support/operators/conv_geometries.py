"""Hypothesis strategies for small convolutions, the modules behind them, and the tensors and shapes of all operators.

Shapes are drawn, numbers come from a drawn seed. Every operator is float64 unless another dtype is asked for, with at
most `LIMIT` inputs and outputs, so that its dense matrix is cheap.
"""

import random
from typing import TypeVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor, nn

from lipkit.linops import Conv, ConvTranspose, LinearOperator, Padding, Shape

LIMIT = 150

T = TypeVar("T")

LONGEST = {1: 12, 2: 5, 3: 3}
_WIDEST_KERNEL = {1: 5, 2: 3, 3: 2}


@st.composite
def built(draw: DrawFn, strategy: SearchStrategy[T]) -> T:
    """The same values, with the state of `random` put back: shape checks sample tuples, which hypothesis forbids."""
    state = random.getstate()
    value = draw(strategy)
    random.setstate(state)
    return value


def small(op: LinearOperator) -> bool:
    """Whether the dense matrix is cheap."""
    return max(op.in_size, op.out_size) <= LIMIT


@st.composite
def tensors(draw: DrawFn, shape: Shape, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers from a drawn seed."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, dtype=dtype, generator=generator)


def shapes(rank: int, longest: int = 4) -> SearchStrategy[Shape]:
    """Shapes of `rank` axes of at most `longest` entries each."""
    return st.tuples(*(st.integers(1, longest) for _ in range(rank)))


@st.composite
def any_shapes(draw: DrawFn) -> Shape:
    """Shapes of one to three axes."""
    return draw(shapes(draw(st.integers(1, 3))))


@st.composite
def sides(draw: DrawFn, size: int, mode: Padding) -> tuple[int, int]:
    """Widths that the mode allows on an axis of `size`, equal ones often."""
    widest = {Padding.REFLECT: min(3, size - 1), Padding.CIRCULAR: min(3, size)}.get(mode, 3)
    left = draw(st.integers(0, widest))
    return left, draw(st.one_of(st.just(left), st.integers(0, widest)))


def _fitting(draw: DrawFn, padded: Shape, rank: int) -> tuple[Shape, Shape]:
    """A kernel and a dilation that fit in the padded input."""
    kernel = tuple(draw(st.integers(1, min(_WIDEST_KERNEL[rank], n))) for n in padded)
    dilation = tuple(
        draw(st.integers(1, min(3, (n - 1) // (k - 1)) if k > 1 else 3)) for n, k in zip(padded, kernel, strict=True)
    )
    return kernel, dilation


@st.composite
def _conv(draw: DrawFn, dtype: torch.dtype, modes: tuple[Padding, ...]) -> Conv:
    rank = draw(st.sampled_from([1, 1, 2, 2, 3]))
    mode = draw(st.sampled_from(modes))
    spatial = draw(shapes(rank, LONGEST[rank]))
    padding = tuple(draw(sides(n, mode)) for n in spatial)
    padded = tuple(n + sum(pair) for n, pair in zip(spatial, padding, strict=True))
    kernel, dilation = _fitting(draw, padded, rank)
    groups = draw(st.integers(1, 3))
    c_out, c_in = draw(shapes(2, 3 if groups == 1 else 2))
    weight = draw(tensors((groups * c_out, c_in, *kernel), dtype))
    return Conv(weight, spatial, draw(shapes(rank, 3)), padding, dilation, groups, mode)


def conv_operators(
    dtype: torch.dtype = torch.float64, modes: tuple[Padding, ...] = tuple(Padding)
) -> SearchStrategy[Conv]:
    """Convolutions of all ranks, strides, dilations, groups, paddings and modes."""
    return built(_conv(dtype, modes).filter(small))


@st.composite
def _conv_transpose(draw: DrawFn, dtype: torch.dtype) -> ConvTranspose:
    rank = draw(st.sampled_from([1, 1, 2, 2, 3]))
    spatial = draw(shapes(rank, {1: 8, 2: 4, 3: 2}[rank]))
    kernel = draw(shapes(rank, _WIDEST_KERNEL[rank]))
    stride, dilation = draw(shapes(rank, 3)), draw(shapes(rank, 3))
    output_padding = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    sizes = [
        s * (n - 1) + d * (k - 1) + 1 + o
        for n, s, d, k, o in zip(spatial, stride, dilation, kernel, output_padding, strict=True)
    ]
    padding = tuple(draw(st.integers(0, min(3, (size - 1) // 2))) for size in sizes)
    groups = draw(st.integers(1, 3))
    c_in, c_out = draw(shapes(2, 2))
    weight = draw(tensors((groups * c_in, c_out, *kernel), dtype))
    return ConvTranspose(weight, spatial, stride, padding, output_padding, dilation, groups)


def conv_transpose_operators(dtype: torch.dtype = torch.float64) -> SearchStrategy[ConvTranspose]:
    """Transposed convolutions of all ranks, strides, dilations, groups and paddings."""
    return built(_conv_transpose(dtype).filter(small))


_CONV_MODULES: dict[int, type[nn.Conv1d | nn.Conv2d | nn.Conv3d]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def conv_modules(draw: DrawFn) -> tuple[nn.Module, Shape]:
    """float64 torch.nn.ConvNd modules, and the shape of an input each accepts."""
    rank = draw(st.integers(1, 3))
    mode = draw(st.sampled_from(Padding))
    spatial = draw(shapes(rank, LONGEST[rank]))
    groups = draw(st.integers(1, 2))
    kernel, dilation = draw(shapes(rank, _WIDEST_KERNEL[rank])), draw(shapes(rank, 2))
    lengths = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = draw(st.sampled_from(["same", "valid", "numbers"]))
    stride = (1,) * rank if padding == "same" else draw(shapes(rank, 3))
    if padding == "numbers":
        padding = tuple(draw(sides(n, mode))[0] for n in spatial)
        spatial = tuple(max(n, e - 2 * p) for n, e, p in zip(spatial, lengths, padding, strict=True))
    else:
        spatial = tuple(max(n, e) for n, e in zip(spatial, lengths, strict=True))
    generator_seed = draw(st.integers(0, 2**31))
    c_in, c_out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    with torch.random.fork_rng():
        torch.manual_seed(generator_seed)
        module = _CONV_MODULES[rank](
            c_in,
            c_out,
            kernel,  # pyright: ignore[reportArgumentType]
            stride,  # pyright: ignore[reportArgumentType]
            padding,  # pyright: ignore[reportArgumentType]
            dilation,  # pyright: ignore[reportArgumentType]
            groups,
            padding_mode=mode.value,
            dtype=torch.float64,
        )
    return module, (c_in, *spatial)
