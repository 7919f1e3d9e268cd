"""Layer, group, instance and root-mean-square normalisation, and norms of vectors."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit.linops import Diagonal, Shape
from lipkit.trace.network import Builder, Ref, Refusal, constant
from lipkit.trace.nodes import Pointwise
from lipkit.trace.nodes.activations.powers import SQUARE
from lipkit.trace.nodes.normalization import Normalization
from lipkit.trace.nodes.unit_vectors import Unit
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import combination, scale, shape_of
from lipkit.trace.rules.averages import mean, sums
from lipkit.trace.rules.joining import along, drop_axes, group_axes, join
from lipkit.trace.rules.moving import broadcast
from lipkit.trace.rules.products.elementwise_binary import product

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _normalize(b: Builder, x: Ref, groups: Shape, eps: float, centered: bool) -> Ref:
    """x normalised in groups of equal size that lie one after the other, in its own shape."""
    size = math.prod(x.shape) // math.prod(groups)
    found = b.node(Normalization((*groups, size), float(eps), centered), b.reshape(x, (*groups, size)))
    return b.reshape(found, x.shape)


def _affine(b: Builder, x: Ref, weight: Any, bias: Any, shape: Shape) -> Ref:
    """weight x + bias, both reshaped to `shape`, which broadcasts: linear, so that it fuses with what follows."""
    weight, bias = constant(weight, "the weight"), constant(bias, "the bias")
    if weight is not None:
        x = b.linear(Diagonal(weight.reshape(shape), x.shape), x, None if bias is None else bias.reshape(shape))
    elif bias is not None:
        x = combination(b, [(x, 1), (bias.reshape(shape), 1)])
    return x


@lowers(
    aten.layer_norm.default,
    samples=lambda: [
        Sample((_x(1, 3, 4), [4], _x(4), _x(4))),
        Sample((_x(1, 3, 4), [3, 4], None, None, 1e-3)),
        Sample((_x(1, 3, 4), [4], None, _x(4))),
    ],
)
def layer_norm(
    b: Builder,
    x: Ref,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Ref:
    """Normalised over the last axes (Lip = 1 / sqrt(eps)), then scaled by the weight."""
    del cudnn_enable
    shape = tuple(normalized_shape)
    found = _normalize(b, x, x.shape[: len(x.shape) - len(shape)], eps, True)
    return _affine(b, found, weight, bias, shape)


@lowers(
    aten.group_norm.default,
    samples=lambda: [Sample((_x(1, 4, 3), 2, _x(4), _x(4))), Sample((_x(1, 4, 2, 3), 4, None, None, 1e-3))],
)
def group_norm(
    b: Builder,
    x: Ref,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Ref:
    """Normalised over groups of channels (Lip = 1 / sqrt(eps)), then scaled channel by channel."""
    del cudnn_enabled
    found = _normalize(b, x, (x.shape[0], num_groups), eps, True)
    return _affine(b, found, weight, bias, (x.shape[1], *(1,) * (len(x.shape) - 2)))


@lowers(
    aten.instance_norm.default,
    samples=lambda: [
        Sample((_x(1, 2, 5), _x(2), _x(2), None, None, True, 0.1, 1e-5, False)),
        Sample((_x(1, 2, 3, 3), None, None, None, None, True, 0.1, 1e-3, False)),
        Sample((_x(1, 2, 3), _x(2), _x(2), _x(2), _x(2).abs() + 1, False, 0.1, 1e-5, False)),
    ],
)
def instance_norm(
    b: Builder,
    x: Ref,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Ref:
    """Normalised over each channel's own entries, or by running statistics, which is affine."""
    del momentum, cudnn_enabled
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    if use_input_stats:
        found = _normalize(b, x, x.shape[:2], eps, True)
    else:
        center, variance = constant(running_mean, "the mean"), constant(running_var, "the variance")
        shifted = combination(b, [(x, 1), (center.reshape(shape), -1)])
        found = scale(b, shifted, (variance.to(torch.float64) + eps).rsqrt().reshape(shape), rounded=True)
    return _affine(b, found, weight, bias, shape)


@lowers(
    aten.rms_norm.default,
    samples=lambda: [
        Sample((_x(1, 3, 4), [4], _x(4), 1e-5)),
        Sample((_x(1, 3, 4), [3, 4], None, 1e-3)),
        Sample((_x(1, 3, 4), [4])),
    ],
)
def rms_norm(b: Builder, x: Ref, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Ref:
    """Divided by the root of the mean square (Lip = 1 / sqrt(eps)), then scaled by the weight."""
    if eps is None:
        # torch computes it in float32 at least, takes the eps of that, and gives the result in the input's type.
        eps = torch.finfo(torch.promote_types(b.dtype, torch.float32)).eps
    shape = tuple(normalized_shape)
    found = _normalize(b, x, x.shape[: len(x.shape) - len(shape)], eps, False)
    return _affine(b, found, weight, None, shape)


def _norm(b: Builder, x: Ref, order: float, axes: Sequence[int], keepdim: bool) -> Ref:
    values, _ = group_axes(b, x, axes)
    return drop_axes(b, b.node(VectorNorm(values.shape, order), values), x, axes, keepdim)


@lowers(
    aten.linalg_vector_norm.default,
    samples=lambda: [
        Sample((_x(1, 3, 4), 2, [-1], True)),
        Sample((_x(1, 3, 4), 1, [1, 2])),
        Sample((_x(1, 3), math.inf)),
        Sample((_x(1, 3), 3.0, [1])),
    ],
)
def vector_norm(
    b: Builder, x: Ref, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any
) -> Ref:
    """A norm of vectors: Lip = d^max(0, 1/q - 1/p)."""
    if not ord >= 1:
        raise Refusal(f"is no norm at order {ord}", "use an order >= 1")
    return _norm(b, x, float(ord), tuple(dim or ()), keepdim)


@lowers(
    aten.linalg_norm.default, samples=lambda: [Sample((_x(1, 3, 4), None, [-1])), Sample((_x(1, 3, 4), 1, [2], True))]
)
def linalg_norm(
    b: Builder, x: Ref, ord: float | None = None, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any
) -> Ref:
    """A norm of vectors; of matrices only the Frobenius norm, which is one of vectors."""
    if ord is not None and len(dim or x.shape) > 1:
        raise Refusal(f"is the matrix norm of order {ord}", "use the Frobenius norm, or torch.linalg.vector_norm")
    return vector_norm(b, x, 2 if ord is None else ord, dim, keepdim)


@lowers(
    aten.std.dim,
    samples=lambda: [Sample((_x(1, 3, 4), [-1])), Sample((_x(1, 3, 4), [1, 2], False, True))],
)
def std(b: Builder, x: Ref, dim: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False) -> Ref:
    """The norm of the centered values over sqrt(n - 1), or sqrt(n): Lip = 1 / sqrt(n - 1) in l2."""
    return _deviation(b, x, dim or (), float(unbiased), keepdim)


@lowers(aten.std.correction, samples=lambda: [Sample((_x(1, 3, 4), [-1]), {"correction": 0, "keepdim": True})])
def std_correction(
    b: Builder, x: Ref, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Ref:
    """The same with another divisor."""
    return _deviation(b, x, dim or (), 1.0 if correction is None else float(correction), keepdim)


@lowers(
    aten.var.dim,
    samples=lambda: [Sample((_x(1, 3, 4), [-1])), Sample((_x(1, 3, 4), [1, 2], False, True))],
)
def var(b: Builder, x: Ref, dim: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False) -> Ref:
    """The square of the standard deviation: finite constants on a bounded region only."""
    found = std(b, x, dim, unbiased, keepdim)
    return b.node(Pointwise(SQUARE, found.shape), found)


@lowers(aten.var.correction, samples=lambda: [Sample((_x(1, 3, 4), [-1]), {"correction": 0, "keepdim": True})])
def var_correction(
    b: Builder, x: Ref, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Ref:
    """The same with another divisor."""
    found = std_correction(b, x, dim, correction=correction, keepdim=keepdim)
    return b.node(Pointwise(SQUARE, found.shape), found)


def _deviation(b: Builder, x: Ref, axes: Sequence[int], correction: float, keepdim: bool) -> Ref:
    n = math.prod(x.shape[axis] for axis in axes or range(len(x.shape)))
    if not n > correction:
        raise Refusal(f"divides by {n} - {correction:g}", "use a smaller correction")
    # Centered as a model would write it, so that (x - mean) / std is recognised.
    centered = combination(b, [(x, 1), (mean(b, x, list(axes) or None, True), -1)])
    return scale(b, _norm(b, centered, 2.0, axes, keepdim), 1 / math.sqrt(n - correction))


@lowers(
    aten.pairwise_distance.default,
    samples=lambda: [
        Sample((_x(1, 3), _x(1, 3)), wrt=(0, 1)),
        Sample((_x(1, 2, 3), _x(1, 2, 3), 1.0, 1e-3, True)),
    ],
)
def pairwise_distance(b: Builder, x: Any, y: Any, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Ref:
    """|x - y + eps|_p along the last axis."""
    return vector_norm(b, combination(b, [(x, 1), (y, -1), (float(eps), 1)]), p, [-1], keepdim)


@lowers(
    aten.cdist.default,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(1, 4, 2)), wrt=(0, 1)),
        Sample((_x(1, 3, 2), _x(4, 2), 1.0)),
    ],
)
def cdist(b: Builder, x: Any, y: Any, p: float = 2, compute_mode: Any = None) -> Ref:
    """|x_i - y_j|_p for all rows i of x and j of y."""
    del compute_mode
    first, second = (_rows(b, v, at) for v, at in ((x, -1), (y, -2)))
    return vector_norm(b, combination(b, [(first, 1), (second, -1)]), p, [-1])


def _rows(b: Builder, x: Any, at: int) -> Any:
    """x with one more axis of 1, right before its last one or before its last two."""
    shape = tuple(x.shape)
    longer = (*shape[:at], 1, *shape[at:])
    return b.reshape(x, longer) if isinstance(x, Ref) else x.reshape(longer)


@lowers(
    aten.cosine_similarity.default,
    samples=lambda: [
        Sample((_x(1, 3, 4), _x(1, 3, 4), -1), wrt=(0, 1)),
        Sample((_x(1, 3, 4), _x(3, 4), 1)),
    ],
)
def cosine_similarity(b: Builder, x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Ref:
    """The inner product of the two vectors, each divided by its length."""
    target = tuple(torch.broadcast_shapes(shape_of(x), shape_of(y)))
    first, second = (_directions(b, v, target, dim, float(eps)) for v in (x, y))
    if isinstance(first, Ref) and isinstance(second, Ref):
        return sums(b, product(b, first, second), [dim])
    if isinstance(second, Ref):
        first, second = second, first
    assert isinstance(first, Ref)
    return sums(b, scale(b, first, constant(second, "the other vector")), [dim])


def _directions(b: Builder, x: Any, target: Shape, dim: int, eps: float) -> Ref | Tensor:
    """The vectors along an axis, after broadcasting, divided by their lengths."""
    if isinstance(x, Ref):
        full = x if x.shape == target else b.linear(broadcast(x.shape, target), x)
        return along(b, full, dim, lambda shape: Unit(shape, eps))
    full = x.to(torch.float64).expand(target)
    return full / torch.linalg.vector_norm(full, dim=dim, keepdim=True).clamp(min=eps)


@lowers(aten.hypot.default, samples=lambda: [Sample((_x(1, 3), _x(1, 3)), wrt=(0, 1)), Sample((_x(1, 3), _x(3)))])
def hypot(b: Builder, x: Any, y: Any) -> Ref:
    """sqrt(x^2 + y^2)."""
    target = tuple(torch.broadcast_shapes(shape_of(x), shape_of(y)))
    refs = [v if isinstance(v, Ref) else b.constant(torch.as_tensor(v)) for v in (x, y)]
    full = [r if r.shape == target else b.linear(broadcast(r.shape, target), r) for r in refs]
    values, _ = group_axes(b, b.reshape(join(b, full), (2, *target)), (0,))
    return b.reshape(b.node(VectorNorm(values.shape, 2.0), values), target)
