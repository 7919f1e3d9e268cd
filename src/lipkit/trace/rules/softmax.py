"""Softmax and its relatives."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit.linops import Shape
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.nodes.attention.attention import Attention
from lipkit.trace.nodes.attention.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.attention.softmax import Softmax
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import shape_of
from lipkit.trace.rules.joining import along, drop_axes, group_axes, join
from lipkit.trace.rules.moving import broadcast

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _samples() -> list[Sample]:
    all_three, seen = (0, 1, 2), torch.tensor([[True, False, True], [True, True, True]])
    return [
        Sample((_x(1, 2, 3, 2), _x(1, 2, 4, 2), _x(1, 2, 4, 3)), wrt=all_three),
        Sample((_x(1, 3, 2), _x(1, 3, 2), _x(1, 3, 2), None, 0.0, True), wrt=all_three),
        Sample((_x(1, 2, 2), _x(1, 3, 2), _x(1, 3, 2), seen), {"scale": 0.3}, wrt=all_three),
        Sample((_x(1, 2, 2, 2), _x(1, 2, 3, 2), _x(1, 2, 3, 2), _x(2, 2, 3)), wrt=all_three),
        Sample((_x(1, 4, 2, 2), _x(1, 2, 3, 2), _x(1, 2, 3, 2)), {"enable_gqa": True}, wrt=all_three),
        Sample((_x(1, 2, 2, 2), _x(1, 2, 3, 2), _x(1, 2, 3, 2)), wrt=(0, 1)),
    ]


@lowers(aten.scaled_dot_product_attention.default, samples=_samples)
def attention(
    b: Builder,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Ref:
    """softmax(scale Q K' + mask) V as one node over (Q, K, V): finite constants on a bounded region only."""
    if isinstance(attn_mask, Ref):
        raise Refusal("its mask depends on the input", "use a fixed mask, or write attention with matmul and softmax")
    if dropout_p:
        raise Refusal("drops weights at random", "pass dropout_p=0.0 in evaluation mode")
    q, k, v = (x if isinstance(x, Ref) else b.constant(x) for x in (query, key, value))
    shape = (*q.shape[:-1], v.shape[-1])
    batch = torch.broadcast_shapes(k.shape[:-2], v.shape[:-2], q.shape[:-2] if not enable_gqa else k.shape[:-2])
    k, v = _full(b, k, tuple(batch)), _full(b, v, tuple(batch))
    if not enable_gqa:
        q = _full(b, q, tuple(batch))
        shape = (*batch, *shape[-2:])
    # Queries of several heads that share keys are more queries of one head: rows do not depend on each other.
    heads = math.prod(batch)
    rows, keys = math.prod(q.shape[:-1]) // heads, k.shape[-2]
    mask = _mask(attn_mask, is_causal, (*q.shape[:-1], keys))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    node = Attention(
        heads,
        rows,
        keys,
        q.shape[-1],
        v.shape[-1],
        factor,
        None if mask is None else mask.reshape(heads, rows, keys),
    )
    return b.reshape(b.node(node, join(b, (q, k, v))), shape)


def _full(b: Builder, x: Ref, batch: Shape) -> Ref:
    target = (*batch, *x.shape[-2:])
    return x if math.prod(x.shape) == math.prod(target) else b.linear(broadcast(x.shape, target), x)


def _mask(given: Tensor | None, causal: bool, shape: Shape) -> Tensor | None:
    """The mask that is added to the scores, in full shape; refused if a query sees no key."""
    if given is None and not causal:
        return None
    rows, keys = shape[-2:]
    mask = torch.zeros(shape, dtype=torch.float64)
    if causal:
        mask = mask.masked_fill(torch.ones(rows, keys, dtype=torch.bool).triu(1), -math.inf)
    if given is not None:
        added = torch.where(given, 0.0, -math.inf) if given.dtype == torch.bool else given
        mask = mask.to(added.device) + added.to(torch.float64)
    if bool((mask == -math.inf).all(-1).any()):
        raise Refusal("a query sees no key, so its output is 0/0", "let every query see at least one key")
    return mask


def _along() -> list[Sample]:
    return [Sample((_x(1, 3, 4), 1)), Sample((_x(1, 3), -1)), Sample((_x(1, 3, 1), -1))]


@lowers(aten.softmax.int, samples=_along)
def softmax(b: Builder, x: Ref, dim: int, dtype: Any = None) -> Ref:
    """Lip = 1/2 in l1, l2 and linf; a precision asked for changes nothing in real arithmetic."""
    del dtype
    return along(b, x, dim, Softmax)


@lowers(aten.log_softmax.int, samples=_along)
def log_softmax(b: Builder, x: Ref, dim: int, dtype: Any = None) -> Ref:
    """Lip = sqrt(n) in l2, n - 1 in l1, 2 in linf."""
    del dtype
    return along(b, x, dim, LogSoftmax)


@lowers(aten.logsumexp.default, samples=lambda: [Sample((_x(1, 3, 4), [1])), Sample((_x(1, 3, 4), [1, 2], True))])
def logsumexp(b: Builder, x: Ref, dim: Sequence[int], keepdim: bool = False) -> Ref:
    """Lip = 1 in every l_p."""
    values, _ = group_axes(b, x, dim)
    return drop_axes(b, b.node(LogSumExp(values.shape), values), x, dim, keepdim)


@lowers(
    aten.logaddexp.default, samples=lambda: [Sample((_x(1, 3, 2), _x(2)), wrt=(0, 1)), Sample((_x(1, 3), _x(1, 3)))]
)
def logaddexp(b: Builder, x: Any, y: Any) -> Ref:
    """log(exp x + exp y)."""
    target = tuple(torch.broadcast_shapes(shape_of(x), shape_of(y)))
    full = [_spread(b, value, target) for value in (x, y)]
    values, _ = group_axes(b, b.reshape(join(b, full), (2, *target)), (0,))
    return b.reshape(b.node(LogSumExp(values.shape), values), target)


def _spread(b: Builder, value: Any, target: Shape) -> Ref:
    ref = value if isinstance(value, Ref) else b.constant(torch.as_tensor(value))
    return ref if math.prod(ref.shape) == math.prod(target) else b.linear(broadcast(ref.shape, target), ref)
