"""Convex potential layers."""

from typing import final

import torch
from torch import Tensor

from lipkit.nn.methods._arithmetic.symbol_norm import norm_above
from lipkit.nn.residual._base import Coefficient, ConvResidual, DenseResidual, ResidualLayer
from lipkit.rounding.slacks import ROUNDINGS_32, UNIT_OF

# Slack of the grid: with 6 Gram steps the step sizes are within 3 % of the largest allowed ones for random weights.
_SLACK = 0.01


@final
class _OneStepSize(Coefficient):
    """2 / b^2 with a certified b >= ||W|| for each group."""

    def inverse_square(self, blocks: Tensor, *others: Tensor) -> Tensor:
        kernel = blocks.to(torch.float64)
        bound = norm_above(kernel if kernel.ndim > 3 else kernel.unsqueeze(-1), self.steps, _SLACK)
        # The scaled entries were rounded before: what that can change is at most u sqrt(taps) ||W||_F.
        unit = UNIT_OF[torch.float32 if blocks.dtype == torch.float32 else torch.float64]
        size = torch.linalg.vector_norm(kernel.detach().flatten(1), dim=1) * kernel[0, 0, 0].numel() ** 0.5
        bound = (bound + 2 * unit * size) * (1 + ROUNDINGS_32)
        alive = bound.detach() > 0
        inverse = torch.where(alive, torch.where(alive, bound, 1.0).square().reciprocal(), 0.0)
        return inverse[:, None].expand(-1, blocks.shape[1])


class _CPL(ResidualLayer):
    coefficient_type = _OneStepSize
    default_steps = 6
    most_steps = 20


@final
class CPL(_CPL, DenseResidual):
    """x - (2/||W||^2) W' phi(W x + b): a step along the gradient of a convex function, of the largest safe length.

    phi is non-decreasing with slopes of at most one (checked; ReLU if none is given); |.| and sorts are refused.

    Guarantee: constant 1, from a certified norm of the weights as they are multiplied with. Cost: two products, and
    `Spectral`'s norm. Reference: Meunier, Delattre, Araujo, Allauzen 2022.

    Limits: directions of singular values s below ||W|| shrink by |1 - 2 s^2/||W||^2|, so fifty layers as they start
    keep 1e-5 of a gradient. In a stack of L take `ConvexResidual(CPL(n), start=1/L)`: a layer with share a has no
    singular value below 1 - 2 a, whatever its weights are, so the stack starts with at least (1 - 2/L)^L, about 0.13.

    Args:
        features: Entries of an input, on its last axis; the output has as many.
        hidden: Rows of W; `features` if None.
        activation: phi; nn.ReLU() if None.
        steps: Gram products that bound ||W||, 6 if None; more give longer steps.
    """


@final
class CPLConv(_CPL, ConvResidual):
    """`CPL` with convolutions in 1 to 3 dimensions that keep the size (odd kernels; zero or circular padding).

    The norm is that of the symbol's supremum, so the constant holds on images of every size. Cost: two convolutions,
    and `Spectral`'s norm of the kernel, which is dear at many channels; `SLLConv` is cheaper.

    Args:
        channels: Channels of input and output.
        kernel_size: Taps on each axis, odd; one number for all `rank` axes.
        hidden: Channels of W x; `channels` if None.
        rank: Number of spatial axes where `kernel_size` is one number.
        activation: phi; nn.ReLU() if None.
        steps: Gram products that bound the norm, 6 if None.
    """
