"""Convex potential layers."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.layers.conv import PaddingMode
from lipkit.nn.methods._arithmetic.symbol_norm import norm_above
from lipkit.nn.residual._base import Coefficient, ResidualLayer, convolution, dense
from lipkit.rounding.slacks import ROUNDINGS_32, UNIT_OF

# Gram steps and slack of the grid: the step sizes are within 3 % of the largest allowed ones for random weights.
_STEPS = 6
_SLACK = 0.01


@final
class _OneStepSize(Coefficient):
    """2 / b^2 with a certified b >= ||W|| for each group."""

    def inverse_square(self, blocks: Tensor, *others: Tensor) -> Tensor:
        kernel = blocks.to(torch.float64)
        bound = norm_above(kernel if kernel.ndim > 3 else kernel.unsqueeze(-1), _STEPS, _SLACK)
        # The scaled entries were rounded before: what that can change is at most u sqrt(taps) ||W||_F.
        unit = UNIT_OF[torch.float32 if blocks.dtype == torch.float32 else torch.float64]
        size = torch.linalg.vector_norm(kernel.detach().flatten(1), dim=1) * kernel[0, 0, 0].numel() ** 0.5
        bound = (bound + 2 * unit * size) * (1 + ROUNDINGS_32)
        alive = bound.detach() > 0
        inverse = torch.where(alive, torch.where(alive, bound, 1.0).square().reciprocal(), 0.0)
        return inverse[:, None].expand(-1, blocks.shape[1])


class _CPL(ResidualLayer):
    def __init__(
        self, geometry: Geometry, bias: bool, activation: nn.Module | None, device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__(geometry, bias, activation, device, dtype)
        self.coefficient = _OneStepSize(geometry)

    def coefficient_of(self, weight: Float[Tensor, "..."]) -> Float[Tensor, " hidden"]:
        """2 / ||W||^2 for every hidden channel, rounded down."""
        return self.coefficient(weight)


@final
class CPL(_CPL):
    """x - (2/||W||^2) W' phi(W x + b): a step along the gradient of a convex function, of the largest safe length.

    phi is non-decreasing with slopes of at most one (checked; ReLU if none is given); |.| and sorts are refused.

    Guarantee: constant 1, from a certified norm of the weights as they are multiplied with. Cost: two products, and
    `Spectral`'s norm. Reference: Meunier, Delattre, Araujo, Allauzen 2022.
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
    ) -> None:
        super().__init__(dense(features, hidden), bias, activation, device, dtype)


@final
class CPLConv(_CPL):
    """`CPL` with convolutions in 1 to 3 dimensions that keep the size (odd kernels; zero or circular padding).

    The norm is that of the symbol's supremum, so the constant holds on images of every size. Cost: two convolutions,
    and `Spectral`'s norm of the kernel, which is dear at many channels; `SLLConv` is cheaper.
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
    ) -> None:
        geometry = convolution(channels, hidden, kernel_size, dilation, groups, padding_mode, rank)
        super().__init__(geometry, bias, activation, device, dtype)
