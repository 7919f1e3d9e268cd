"""Layers from the semidefinite condition, with a step size for each hidden channel."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.layers.conv import PaddingMode
from lipkit.nn.methods._arithmetic.majorant import majorant
from lipkit.nn.residual._base import Coefficient, ResidualLayer, convolution, dense
from lipkit.rounding.slacks import ROUNDINGS_128

# The smallest weight q, as a part of their sum: what lies further below, by its logarithm 200, counts as this.
_SMALLEST = math.exp(-200.0)
# Channels with smaller sums, for entries of at most one, count as zero.
_LEAST = {torch.float32: 2.0**-90, torch.float64: 2.0**-900}


@final
class StepSizes(Coefficient):
    """2 / T_i with W W' <= diag(T), T_i = (sum_j |M_ij| q_j/q_i)^(1/2^(steps - 1)), M = (W W')^(2^(steps - 1))."""

    def __init__(self, geometry: Geometry, steps: int) -> None:
        super().__init__(geometry)
        self.steps = steps

    def inverse_square(self, blocks: Tensor, *others: Tensor) -> Tensor:
        (log_q,) = others
        # Any positive q is sound, and only quotients count.
        q = log_q.to(torch.float64).unflatten(0, (blocks.shape[0], -1)).softmax(1) + _SMALLEST
        kernel = blocks.transpose(1, 2)
        sums = majorant(kernel if kernel.ndim > 3 else kernel.unsqueeze(-1), self.steps, q, 1 + ROUNDINGS_128)
        return torch.threshold(sums, _LEAST[blocks.dtype], math.inf).reciprocal()


class DiagonalLayer(ResidualLayer):
    """A residual layer with learnt q and a step size for each hidden channel."""

    def __init__(
        self, geometry: Geometry, bias: bool, activation: nn.Module | None, steps: int, device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        if not 1 <= steps <= 6:
            raise ArgumentError(f"steps must lie in 1..6, got {steps}; CPL is the limit of many.")
        super().__init__(geometry, bias, activation, device, dtype)
        self.log_q = nn.Parameter(torch.zeros(geometry.groups * geometry.rows, device=device, dtype=dtype))
        self.coefficient = StepSizes(geometry, steps)

    def coefficient_of(self, weight: Float[Tensor, "..."]) -> Float[Tensor, " hidden"]:
        """2 / T for each hidden channel, rounded down."""
        return self.coefficient(weight, self.log_q)


@final
class SLL(DiagonalLayer):
    """x - 2 W' T^(-1) phi(W x + b) with W W' <= T, T_i = sum_j |W W'|_ij q_j/q_i and learnt q = exp(log_q).

    phi is non-decreasing with slopes of at most one (checked; ReLU if none is given). With `steps` > 1 T comes from
    powers of W W' as in `Rescale`, which is closer to ||W||^2 I, the choice of `CPL`.

    Guarantee: constant 1, for the weights as they are multiplied with. Cost: two products, and `steps` Gram products.
    Reference: Araujo, Havens, Delattre, Allauzen, Hu 2023; powers: Delattre 2025.
    """

    def __init__(
        self,
        features: int,
        hidden: int | None = None,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: nn.Module | None = None,
        steps: int = 1,
    ) -> None:
        super().__init__(dense(features, hidden), bias, activation, steps, device, dtype)


@final
class SLLConv(DiagonalLayer):
    """`SLL` with convolutions in 1 to 3 dimensions that keep the size (odd kernels; zero or circular padding).

    T_i = sum over j and all shifts of |correlation of hidden channels i and j| q_j/q_i. Cost: two convolutions, and
    the filter Gram as in `AOL`.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int | Shape,
        hidden: int | None = None,
        dilation: int | Shape = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        rank: int = 2,
        activation: nn.Module | None = None,
        steps: int = 1,
    ) -> None:
        geometry = convolution(channels, hidden, kernel_size, dilation, groups, padding_mode, rank)
        super().__init__(geometry, bias, activation, steps, device, dtype)
