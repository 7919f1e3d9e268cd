"""Layers from the semidefinite condition, with a step size for each hidden channel."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.nn.methods._arithmetic.majorant import majorant
from lipkit.nn.residual._base import Coefficient, ConvResidual, DenseResidual, ResidualLayer
from lipkit.rounding.slacks import ROUNDINGS_128

# The smallest weight q, as a part of their sum: what lies further below, by its logarithm 200, counts as this.
_SMALLEST = math.exp(-200.0)
# Channels with smaller sums, for entries of at most one, count as zero.
_LEAST = {torch.float32: 2.0**-90, torch.float64: 2.0**-900}


@final
class StepSizes(Coefficient):
    """2 / T_i with W W' <= diag(T), T_i = (sum_j |M_ij| q_j/q_i)^(1/2^(steps - 1)), M = (W W')^(2^(steps - 1))."""

    def inverse_square(self, blocks: Tensor, *others: Tensor) -> Tensor:
        (log_q,) = others
        # Any positive q is sound, and only quotients count.
        q = log_q.to(torch.float64).unflatten(0, (blocks.shape[0], -1)).softmax(1) + _SMALLEST
        kernel = blocks.transpose(1, 2)
        sums = majorant(kernel if kernel.ndim > 3 else kernel.unsqueeze(-1), self.steps, q, 1 + ROUNDINGS_128)
        return torch.threshold(sums, _LEAST[blocks.dtype], math.inf).reciprocal()


class DiagonalLayer(ResidualLayer):
    """A residual layer with learnt q and a step size for each hidden channel."""

    coefficient_type = StepSizes
    default_steps = 1
    # `CPL` is the limit of many steps.
    most_steps = 6

    def add_parameters(self, device: torch.device | None, dtype: torch.dtype | None) -> None:
        """log_q."""
        self.log_q = nn.Parameter(torch.empty(self.geometry.groups * self.geometry.rows, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Draw weight and bias anew, as the constructor does; log_q is zero."""
        super().reset_parameters()
        with torch.no_grad():
            self.log_q.zero_()

    def coefficient_of(self, weight: Float[Tensor, "..."]) -> Float[Tensor, " hidden"]:
        """2 / T for each hidden channel, rounded down."""
        return self.coefficient(weight, self.log_q)


@final
class SLL(DiagonalLayer, DenseResidual):
    """x - 2 W' T^(-1) phi(W x + b) with W W' <= T, T_i = sum_j |W W'|_ij q_j/q_i and learnt q = exp(log_q).

    phi is non-decreasing with slopes of at most one (checked; ReLU if none is given). With `steps` > 1 T comes from
    powers of W W' as in `Rescale`, which is closer to ||W||^2 I, the choice of `CPL`.

    Guarantee: constant 1, for the weights as they are multiplied with. Cost: two products, and `steps` Gram products.
    Reference: Araujo, Havens, Delattre, Allauzen, Hu 2023; powers: Delattre 2025.

    Args:
        features: Entries of an input, on its last axis; the output has as many.
        hidden: Rows of W; `features` if None.
        activation: phi; nn.ReLU() if None.
        steps: Gram products, 1 to 6; 1 if None, the layer of the paper.
    """


@final
class SLLConv(DiagonalLayer, ConvResidual):
    """`SLL` with convolutions in 1 to 3 dimensions that keep the size (odd kernels; zero or circular padding).

    T_i = sum over j and all shifts of |correlation of hidden channels i and j| q_j/q_i. Cost: two convolutions, and
    the filter Gram as in `AOL`. Arguments as of `CPLConv`; `steps` is 1 if None.
    """
