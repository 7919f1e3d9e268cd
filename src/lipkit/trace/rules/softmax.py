"""Softmax and its relatives."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit.linops import Shape
from lipkit.trace.builder import Builder, Ref
from lipkit.trace.nodes.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.softmax import Softmax
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import shape_of
from lipkit.trace.rules.joining import along, grouped, join, reduced
from lipkit.trace.rules.moving import broadcast

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


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
    values, _ = grouped(b, x, dim)
    return reduced(b, b.node(LogSumExp(values.shape), values), x, dim, keepdim)


@lowers(
    aten.logaddexp.default, samples=lambda: [Sample((_x(1, 3, 2), _x(2)), wrt=(0, 1)), Sample((_x(1, 3), _x(1, 3)))]
)
def logaddexp(b: Builder, x: Any, y: Any) -> Ref:
    """log(exp x + exp y)."""
    target = tuple(torch.broadcast_shapes(shape_of(x), shape_of(y)))
    full = [_spread(b, value, target) for value in (x, y)]
    values, _ = grouped(b, b.reshape(join(b, full), (2, *target)), (0,))
    return b.reshape(b.node(LogSumExp(values.shape), values), target)


def _spread(b: Builder, value: Any, target: Shape) -> Ref:
    ref = value if isinstance(value, Ref) else b.constant(torch.as_tensor(value))
    return ref if math.prod(ref.shape) == math.prod(target) else b.linear(broadcast(ref.shape, target), ref)
