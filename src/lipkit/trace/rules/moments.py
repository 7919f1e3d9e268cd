"""Mean and spread of a value in one operation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lipkit.trace.network import Builder, Ref
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.averages import mean
from lipkit.trace.rules.normalization import std_correction, var_correction

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


_SAMPLES = [((1, 3, 4), [-1], {"correction": 0, "keepdim": True}), ((1, 3, 4), [1, 2], {}), ((1, 3), None, {})]


@lowers(aten.var_mean.correction, samples=lambda: [Sample((_x(*shape), dim), more) for shape, dim, more in _SAMPLES])
def var_mean(
    b: Builder, x: Ref, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Ref, Ref]:
    """The variance, with finite constants on a bounded region only, and the mean, which is linear."""
    return var_correction(b, x, dim, correction=correction, keepdim=keepdim), mean(b, x, dim, keepdim)


@lowers(aten.std_mean.correction, samples=lambda: [Sample((_x(*shape), dim), more) for shape, dim, more in _SAMPLES])
def std_mean(
    b: Builder, x: Ref, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Ref, Ref]:
    """The standard deviation, Lipschitz everywhere, and the mean."""
    return std_correction(b, x, dim, correction=correction, keepdim=keepdim), mean(b, x, dim, keepdim)
