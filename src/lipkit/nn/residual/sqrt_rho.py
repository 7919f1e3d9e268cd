"""Residual layers of a given constant."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.known_constants import SAFE
from lipkit.nn.layers.conv import PaddingMode
from lipkit.nn.residual._base import convolution, dense
from lipkit.nn.residual._step import PlainStep
from lipkit.nn.residual.sll import DiagonalLayer
from lipkit.rounding.slacks import ROUNDINGS_8


class _Scaled(DiagonalLayer):
    """sqrt(rho) times an SLL layer."""

    def __init__(
        self,
        rho: float,
        geometry: Geometry,
        bias: bool,
        activation: nn.Module | None,
        steps: int,
        device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:
        if not 0 < rho < math.inf:
            raise ArgumentError(f"rho must be a positive number, got {rho}.")
        super().__init__(geometry, bias, activation, steps, device, dtype)
        self.rho = rho
        self.factor = math.sqrt(rho) * SAFE

    @property
    def gain(self) -> float:
        """sqrt(rho), rounded up."""
        return super().gain * math.sqrt(self.rho) * (1 + ROUNDINGS_8)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """sqrt(rho) (x - W' (c phi(W x + b)))."""
        return self.factor * super().forward(x)

    def to_plain(self, dtype: torch.dtype | None = None) -> nn.Module:
        """The same function with plain parameters."""
        made = super().to_plain(dtype)
        assert isinstance(made, PlainStep)
        made.factor = self.factor
        return made


@final
class SqrtRho(_Scaled):
    """sqrt(rho) x - W' T phi(W x + b) / sqrt(rho) with W' T W <= 2 rho I: constant sqrt(rho), for one number rho > 0.

    T = rho times the step sizes of `SLL`, so it is sqrt(rho) times that layer; W = 0 gives sqrt(rho) x.

    Guarantee: constant sqrt(rho) for slopes of phi in [0, 1]. The published condition for slopes in [a, b], W W' <=
    2 rho/(a + b)^2 T^(-1), is false for a < 0 (docs/errata.md), so such activations are refused. Cost: that of `SLL`.
    Reference: Fazlyab et al. 2023.

    Args:
        rho: The square of the constant.
        hidden: Rows of W; `features` if None.
        activation: phi; nn.ReLU() if None.
        steps: Gram products, 1 to 6.
    """

    def __init__(
        self,
        features: int,
        rho: float,
        hidden: int | None = None,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: nn.Module | None = None,
        steps: int = 1,
    ) -> None:
        super().__init__(rho, dense(features, hidden), bias, activation, steps, device, dtype)


@final
class SqrtRhoConv(_Scaled):
    """`SqrtRho` with convolutions in 1 to 3 dimensions, as `SLLConv`. Cost: that of `SLLConv`.

    Args:
        rho: The square of the constant.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int | Shape,
        rho: float,
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
        super().__init__(rho, geometry, bias, activation, steps, device, dtype)
