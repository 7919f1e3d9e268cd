"""Which outputs of an operator its positive and its negative entries lead to; exact where entries are weights."""

import torch
from jaxtyping import Bool, Float64
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
    LinearOperator,
    Permute,
    Reshape,
    Scaled,
    StatedRounding,
    Sum,
    Sweep,
    depth,
    materialize,
)
from lipkit.linops.composites import parts_of
from lipkit.linops.queries.absolute import dominating
from lipkit.rounding.float64 import gamma

Mask = Bool[Tensor, "..."]
Masks = tuple[Mask, Mask]

# Up to this many entries an operator made of parts is written out, so that what cancels between them is seen.
_WRITTEN_OUT = 2**20
_UNDERFLOW = 1e-290
_WEIGHTS = (
    Dense,
    DenseStack,
    Diagonal,
    CircularConv,
    Conv,
    ConvExponential,
    ConvTranspose,
    BatchNorm,
    AvgPool,
    Index,
    Permute,
    Reshape,
)


def carried(op: LinearOperator, up: Mask, down: Mask) -> Masks:
    """(A+ up or A- down, A- up or A+ down), where A+ and A- are where A is positive and negative.

    With `up` and `down` the inputs that may grow without bound up and down, these are the outputs that may; with the
    inputs that are not convex and not concave, these are the outputs that need not be. No mark is ever missing: signs
    are read from the weights themselves, and those of products from products whose rounding is bounded.
    Cost: a few applications, and the matrix of a product or sum with at most 2^20 entries.
    """
    found = _structural(op, up, down)
    some = bool((found[0] | found[1]).any())
    if not some or isinstance(op, Dense) or op.in_size * op.out_size > _WRITTEN_OUT or not _all_weights(op):
        return found
    wide = op.to(torch.float64)
    # Zeros and ones for the weights: what is zero here is zero whatever they are, and nothing underflows.
    pattern = dominating(wide.map(lambda t: (t != 0).double() if t.is_floating_point() else t))
    other = _by_matrix(wide, materialize(pattern) > 0, up, down)
    return found[0] & other[0], found[1] & other[1]


def reached(op: LinearOperator, mask: Mask) -> Mask:
    """The outputs that depend on the marked inputs."""
    return carried(op, mask, mask)[0]


def _structural(op: LinearOperator, up: Mask, down: Mask) -> Masks:
    match op:
        case Compose(outer, inner):
            return _structural(outer, *_structural(inner, up, down))
        case Sum(left, right):
            return _either(_structural(left, up, down), _structural(right, up, down))
        case Scaled(factor, inner):
            return _sign(float(factor), _structural(inner, up, down))
        case StatedRounding(inner):
            return _structural(inner, up, down)
        case Sweep(edges, source, sink):
            values = {source: (up, down)}
            for k, j, edge in edges:
                term = _structural(edge, *values[j])
                values[k] = _either(values[k], term) if k in values else term
            return values[sink]
        case BlockRow(parts):
            sizes = [part.in_size for part in parts]
            found = [
                _structural(part, u.reshape(part.in_shape), d.reshape(part.in_shape))
                for part, u, d in zip(parts, up.split(sizes), down.split(sizes), strict=True)
            ]
            return torch.stack([u for u, _ in found]).any(0), torch.stack([d for _, d in found]).any(0)
        case BlockColumn(parts):
            found = [_structural(part, up, down) for part in parts]
            return torch.cat([u.flatten() for u, _ in found]), torch.cat([d.flatten() for _, d in found])
        case BlockDiagonal(parts):
            found = [_structural(part, u, d) for part, u, d in zip(parts, up, down, strict=True)]
            return torch.stack([u for u, _ in found]), torch.stack([d for _, d in found])
        case Adjoint(Compose(outer, inner)):
            return _structural(inner.T, *_structural(outer.T, up, down))
        case Adjoint(Sum(left, right)):
            return _either(_structural(left.T, up, down), _structural(right.T, up, down))
        case Adjoint(Scaled(factor, inner)):
            return _sign(float(factor), _structural(inner.T, up, down))
        case Adjoint(StatedRounding(inner)):
            return _structural(inner.T, up, down)
        case Adjoint(BlockRow(parts)):
            return _structural(BlockColumn(tuple(part.T for part in parts)), up, down)
        case Adjoint(BlockColumn(parts)):
            return _structural(BlockRow(tuple(part.T for part in parts)), up, down)
        case BatchNorm():
            return _structural(op.diagonal, up, down)
        # Fourier transforms would round entries that are zero.
        case CircularConv():
            return _structural(op.conv, up, down)
        case Adjoint(CircularConv() as inner):
            return _structural(inner.conv.T, up, down)
        case ConvExponential():
            return _structural(op.series, up, down)
        case Adjoint(ConvExponential() as inner):
            return _structural(inner.series.T, up, down)
        case Adjoint(BatchNorm() as inner):
            return _structural(inner.diagonal, up, down)
        case _:
            return _leaf(op, up, down)


def _leaf(op: LinearOperator, up: Mask, down: Mask) -> Masks:
    inner = op.inner if isinstance(op, Adjoint) else op
    match inner:
        case Index() | Permute() | Reshape():
            return _through(op, up), _through(op, down)
        case AvgPool():
            return _sign(float(inner.divisor), (_through(op, up), _through(op, down)))
        # Linear in their one tensor, so its positive part gives at least the positive part of the operator.
        case Dense() | DenseStack() | Diagonal() | Conv() | ConvTranspose():
            rising, falling = inner.map(lambda t: (t > 0).double()), inner.map(lambda t: (t < 0).double())
            if isinstance(op, Adjoint):
                rising, falling = rising.T, falling.T
            return _through(rising, up) | _through(falling, down), _through(falling, up) | _through(rising, down)
        # If a callable computes an entry as zero, the entry counts as zero.
        case _ if op.in_size * op.out_size <= _WRITTEN_OUT:
            wide = op.to(torch.float64)
            return _by_matrix(wide, materialize(wide) != 0, up, down)
        case _:
            some = (up | down).any().expand(op.out_shape)
            return some, some


def _by_matrix(op: LinearOperator, some: Bool[Tensor, "out in"], up: Mask, down: Mask) -> Masks:
    """The signs of the entries as computed, those within their rounding error counted as either, `some` not zero."""
    matrix = materialize(op)
    size = materialize(dominating(op))
    # A callable's entries are accurate relative to the largest of their row, its inner results being unknown.
    size = size if _all_weights(op) else size.amax(1, keepdim=True)
    error = gamma(depth(op) + 8) * size + _UNDERFLOW
    rising, falling = some & (matrix > -error), some & (matrix < error)
    first, second = up.flatten().double(), down.flatten().double()
    above = _times(rising, first) | _times(falling, second)
    below = _times(falling, first) | _times(rising, second)
    return above.reshape(op.out_shape), below.reshape(op.out_shape)


def _all_weights(op: LinearOperator) -> bool:
    """Whether the operator is made of known parts only, none of which is a callable."""
    parts = parts_of(op)
    return all(map(_all_weights, parts)) if parts else isinstance(op, _WEIGHTS)


def _times(matrix: Bool[Tensor, "out in"], vector: Float64[Tensor, " in"]) -> Bool[Tensor, " out"]:
    return matrix.double() @ vector > 0


def _through(op: LinearOperator, mask: Mask) -> Mask:
    return op.apply(mask.to(torch.float64)) != 0


def _sign(factor: float, masks: Masks) -> Masks:
    if factor == 0:
        return torch.zeros_like(masks[0]), torch.zeros_like(masks[1])
    return masks if factor > 0 else (masks[1], masks[0])


def _either(left: Masks, right: Masks) -> Masks:
    return left[0] | right[0], left[1] | right[1]
