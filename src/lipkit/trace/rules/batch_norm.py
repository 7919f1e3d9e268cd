"""Batch normalisation with running statistics."""

from typing import Any

import torch
from torch import Tensor

from lipkit.linops import BatchNorm, BlockDiagonal, LinearOperator, Reshape
from lipkit.trace.network import Builder, Ref, Refusal, constant
from lipkit.trace.rules._registry import Sample, lowers

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _samples() -> list[Sample]:
    weight, bias, mean, variance = _x(3), _x(3), _x(3), _x(3).square()
    tail = (False, 0.1, 1e-5, True)
    return [
        Sample((_x(1, 3, 4, 2), weight, bias, mean, variance, *tail)),
        Sample((_x(1, 3), None, None, mean, variance, *tail)),
        Sample((_x(2, 3, 5), weight, None, mean, variance, *tail)),
    ]


@lowers(aten.batch_norm.default, samples=_samples)
def batch_norm(
    b: Builder,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    _momentum: float,
    eps: float,
    _cudnn: bool,
) -> Ref:
    """weight (x - mean) / sqrt(variance + eps) + bias, channel by channel, on the second axis."""
    for what, value in (("the weight", weight), ("the bias", bias), ("the mean", mean), ("the variance", variance)):
        _ = constant(value, what)
    if training or mean is None:
        raise Refusal("normalises by the statistics of the batch", "track running statistics and evaluate with them")
    many, *shape = x.shape
    op: LinearOperator = BatchNorm(weight, variance, eps, tuple(shape))
    # In float64: the constant of real arithmetic, up to float64 rounding.
    scale = (variance.to(torch.float64) + eps).rsqrt()
    scale = scale if weight is None else scale * weight.to(torch.float64)
    offset = -mean.to(torch.float64) * scale
    offset = offset if bias is None else offset + bias.to(torch.float64)
    whole = Reshape(tuple(shape), x.shape) @ op @ Reshape(x.shape, tuple(shape)) if many == 1 else None
    channels = offset.reshape(-1, *(1,) * (len(shape) - 1))
    return b.linear(whole or BlockDiagonal((op,) * many), x, channels)
