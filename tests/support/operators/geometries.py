"""Hypothesis strategies for small float64 operators of every kind; those of convolutions are in `conv_geometries`."""

import math

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from lipkit.linops import (
    Adjoint,
    AvgPool,
    BatchNorm,
    BlockColumn,
    BlockDiagonal,
    BlockRow,
    CircularConv,
    Compose,
    Conv,
    ConvExponential,
    ConvTranspose,
    Dense,
    DenseStack,
    Diagonal,
    Index,
    LinearFunction,
    LinearOperator,
    Padding,
    Permute,
    Reshape,
    Scaled,
    Shape,
    Sum,
    Sweep,
    flip,
    pad,
    select,
)
from lipkit.linops.conv_exponential import same_padding
from support.operators.conv_geometries import (
    LONGEST,
    any_shapes,
    built,
    conv_operators,
    conv_transpose_operators,
    shapes,
    sides,
    small,
    tensors,
)


@st.composite
def dense_operators(draw: DrawFn, dtype: torch.dtype = torch.float64) -> Dense:
    """Matrices of up to 12 by 12, some of them without a row of freedom."""
    return Dense(draw(tensors(draw(shapes(2, 12)), dtype)))


@st.composite
def dense_stacks(draw: DrawFn) -> DenseStack:
    """Stacks of up to 4 matrices."""
    return DenseStack(draw(tensors(draw(shapes(3, 4)))))


@st.composite
def diagonal_operators(draw: DrawFn, dtype: torch.dtype = torch.float64) -> Diagonal:
    """Diagonals whose scale needs broadcasting, in front and inside."""
    shape = draw(any_shapes())
    kept = tuple(draw(st.sampled_from([1, n])) for n in shape)
    return Diagonal(draw(tensors(kept[draw(st.integers(0, len(kept))) :], dtype)), shape)


@st.composite
def batch_norms(draw: DrawFn) -> BatchNorm:
    """Batch normalisations with and without weight."""
    shape = draw(any_shapes())
    weight = draw(st.one_of(st.none(), tensors(shape[:1])))
    return BatchNorm(weight, draw(tensors(shape[:1])).square() + 0.01, draw(st.sampled_from([1e-5, 1e-3])), shape)


@st.composite
def _avg_pool(draw: DrawFn) -> AvgPool:
    rank = draw(st.integers(1, 3))
    spatial, padding = draw(shapes(rank, LONGEST[rank])), tuple(draw(st.integers(0, 2)) for _ in range(rank))
    padded = tuple(n + 2 * p for n, p in zip(spatial, padding, strict=True))
    kernel = tuple(draw(st.integers(1, min(4, n))) for n in padded)
    divisor = draw(st.sampled_from([math.prod(kernel), 3, -2]))
    return AvgPool(draw(st.integers(1, 3)), spatial, kernel, draw(shapes(rank, 3)), padding, divisor)


@st.composite
def circular_convs(draw: DrawFn) -> CircularConv:
    """Kernels as large as the image, of all ranks and with groups."""
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    groups = draw(st.integers(1, 2))
    c_out, c_in = draw(shapes(2, 3 if groups == 1 else 2))
    return CircularConv(draw(tensors((groups * c_out, c_in, *draw(shapes(rank, LONGEST[rank]))))), groups)


@st.composite
def conv_exponentials(draw: DrawFn) -> ConvExponential:
    """Series of convolutions of all ranks, with zero and circular padding, whose kernels need not be skew."""
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    groups, side = draw(st.sampled_from([(1, 1), (1, 2), (2, 1)]))
    taps, dilation = (tuple(draw(st.sampled_from(some)) for _ in range(rank)) for some in ([1, 3], [1, 2]))
    mode = draw(st.sampled_from([Padding.ZEROS, Padding.CIRCULAR]))
    around = same_padding(taps, dilation)
    # Around a circle at most once.
    spatial = tuple(max(n, left) for n, (left, _) in zip(draw(shapes(rank, LONGEST[rank])), around, strict=True))
    weight = draw(tensors((groups * side, side, *taps)))
    return ConvExponential(Conv(weight, spatial, (1,) * rank, around, dilation, groups, mode), draw(st.integers(1, 4)))


@st.composite
def permutes(draw: DrawFn) -> Permute:
    """Permutations of one to three axes."""
    shape = draw(any_shapes())
    return Permute(shape, tuple(draw(st.permutations(range(len(shape))))))


@st.composite
def reshapes(draw: DrawFn) -> Reshape:
    """Flattening, its inverse, and the exchange of two axis lengths."""
    shape = draw(any_shapes())
    other = draw(st.sampled_from([(math.prod(shape),), shape[::-1], (1, *shape)]))
    return Reshape(shape, other)


@st.composite
def index_operators(draw: DrawFn) -> Index:
    """Gathers of all sorts: free ones, paddings, crops, slices, flips."""
    shape = draw(any_shapes())
    kind = draw(st.sampled_from(["free", "pad", "crop", "select", "flip"]))
    if kind == "pad":
        mode = draw(st.sampled_from(Padding))
        return pad(shape, tuple(draw(sides(n, mode)) for n in shape[draw(st.integers(0, len(shape) - 1)) :]), mode)
    if kind == "crop":
        return pad(shape, ((draw(st.integers(-(shape[-1] // 2), 2)), 1 - (shape[-1] + 1) // 2),))
    if kind == "select":
        return select(shape, (..., slice(draw(st.integers(0, shape[-1] - 1)), None, draw(st.integers(1, 2)))))
    if kind == "flip":
        return flip(shape, (draw(st.integers(0, len(shape) - 1)),))
    target = draw(any_shapes())
    flat = draw(st.lists(st.integers(-1, math.prod(shape) - 1), min_size=math.prod(target), max_size=math.prod(target)))
    return Index(torch.tensor(flat).reshape(target), shape)


def _blend(x: Tensor, weight: Tensor) -> Tensor:
    # torch.einsum does not promote, and a real map acts on complex vectors too.
    weight = weight.to(torch.promote_types(weight.dtype, x.dtype))
    return torch.einsum("b...i,ij->b...j", x.to(weight.dtype), weight) + x.flip(-1).sum(-1, keepdim=True)


@st.composite
def function_operators(draw: DrawFn, dtype: torch.dtype = torch.float64) -> LinearFunction:
    """A callable with a parameter and no structure."""
    shape, width = draw(any_shapes()), draw(st.integers(1, 4))
    return LinearFunction(_blend, shape, (*shape[:-1], width), (draw(tensors((shape[-1], width), dtype)),))


def leaves() -> SearchStrategy[LinearOperator]:
    """Operators that are not made of others."""
    return built(st.one_of(*LEAVES.values()))


def between(source: Shape, target: Shape) -> SearchStrategy[LinearOperator]:
    """Dense maps between given shapes."""
    matrices = tensors((math.prod(target), math.prod(source))).map(Dense)
    return matrices.map(
        lambda matrix: (
            Reshape(matrix.out_shape, target) @ matrix @ Reshape(source, matrix.in_shape)
            if len(source) > 1 or len(target) > 1
            else matrix
        )
    )


@st.composite
def following(draw: DrawFn, source: Shape) -> LinearOperator:
    """Operators that start in a given shape."""
    kind = draw(st.sampled_from(["dense", "diagonal", "permute", "pad"]))
    if kind == "diagonal":
        return Diagonal(draw(tensors(source)), source)
    if kind == "permute":
        return Permute(source, tuple(reversed(range(len(source)))))
    if kind == "pad" and source:
        return pad(source, ((1, 0),))
    return draw(between(source, draw(any_shapes())))


@st.composite
def composites(draw: DrawFn) -> Compose:
    """Products of a leaf and what may follow it."""
    inner = draw(leaves())
    return Compose(draw(following(inner.out_shape)), inner)


@st.composite
def sums(draw: DrawFn) -> Sum:
    """Sums of a leaf and a dense map of its shape."""
    left = draw(leaves())
    return Sum(left, draw(between(left.in_shape, left.out_shape)))


@st.composite
def scaled_operators(draw: DrawFn) -> Scaled:
    """Multiples of a leaf."""
    return Scaled(draw(tensors(())), draw(leaves()))


@st.composite
def block_rows(draw: DrawFn) -> BlockRow:
    """One leaf and up to two operators with the same output."""
    first = draw(leaves())
    others = draw(st.lists(any_shapes().flatmap(lambda source: between(source, first.out_shape)), max_size=2))
    return BlockRow((first, *others))


@st.composite
def block_columns(draw: DrawFn) -> BlockColumn:
    """One leaf and up to two operators with the same input."""
    first = draw(leaves())
    return BlockColumn((first, *draw(st.lists(following(first.in_shape), max_size=2))))


@st.composite
def block_diagonals(draw: DrawFn) -> BlockDiagonal:
    """A leaf and a dense map of its shape."""
    first = draw(leaves())
    return BlockDiagonal((first, draw(between(first.in_shape, first.out_shape))))


@st.composite
def sweeps(draw: DrawFn) -> Sweep:
    """A leaf, an operator behind it, and a shortcut or a second way around."""
    first = draw(leaves())
    second = draw(following(first.out_shape))
    across = draw(between(first.in_shape, second.out_shape))
    if draw(st.booleans()):
        return Sweep(((1, 0, first), (2, 0, across), (2, 1, second)), 0, 2)
    back = draw(between(second.out_shape, first.out_shape))
    return Sweep(((1, 0, first), (2, 1, second), (3, 1, Reshape(first.out_shape, first.out_shape)), (3, 2, back)), 0, 3)


LEAVES: dict[type[LinearOperator], SearchStrategy[LinearOperator]] = {
    Dense: dense_operators(),
    DenseStack: dense_stacks(),
    Conv: conv_operators(),
    ConvTranspose: conv_transpose_operators(),
    CircularConv: circular_convs().filter(small),
    ConvExponential: conv_exponentials().filter(small),
    Diagonal: diagonal_operators(),
    BatchNorm: batch_norms(),
    AvgPool: _avg_pool().filter(small),
    Reshape: reshapes(),
    Permute: permutes(),
    Index: index_operators().filter(small),
    LinearFunction: function_operators(),
}

_KINDS: dict[type[LinearOperator], SearchStrategy[LinearOperator]] = {
    **LEAVES,
    Adjoint: leaves().map(Adjoint),
    Compose: composites().filter(small),
    Sum: sums(),
    Scaled: scaled_operators(),
    BlockRow: block_rows().filter(small),
    BlockColumn: block_columns().filter(small),
    BlockDiagonal: block_diagonals().filter(small),
    Sweep: sweeps().filter(small),
}
KINDS = {kind: built(strategy) for kind, strategy in _KINDS.items()}


def operators() -> SearchStrategy[LinearOperator]:
    """Operators of every kind."""
    return st.one_of(*KINDS.values())


def complex_operators() -> SearchStrategy[LinearOperator]:
    """complex128 operators of the kinds that can be complex by themselves, and mixtures with real ones."""
    plain = st.one_of(
        dense_operators(torch.complex128),
        conv_operators(torch.complex128),
        conv_transpose_operators(torch.complex128),
        diagonal_operators(torch.complex128),
        function_operators(torch.complex128),
    )
    mixed = plain.flatmap(lambda op: between(op.out_shape, (3, 2)).map(lambda outer: outer @ op))
    scaled = leaves().flatmap(lambda op: tensors((), torch.complex128).map(lambda factor: Scaled(factor, op)))
    return built(st.one_of(plain, plain.map(Adjoint), mixed, scaled))
