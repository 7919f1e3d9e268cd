"""Swish with a learnt sharpness, made 1-Lipschitz; and its concatenated form."""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.nn.core import slopes
from lipkit.nn.core.known_constants import EveryNorm, Stated
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_4

# The published divisors; the constants that are left are computed below.
_DIVISOR = 1.1
_CONCATENATED = 1.004
# The divisors are rounded to 24 binary digits where they are used.
_UP = 1 + FLOAT32_ROUNDINGS_4


@final
class LipSwish(EveryNorm):
    """x sigmoid(beta x) / 1.1 with a learnt beta > 0 (softplus of a free number, at the start .5).

    The largest slope of x sigmoid(beta x) is 1.0998... for every beta, so the constant is .99985 (rounded up).
    Reference: Chen et al. 2019, Residual Flows.
    """

    def __init__(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(math.log(math.expm1(0.5)), device=device, dtype=dtype))

    @property
    def gain(self) -> float:
        """The largest slope of swish, over 1.1."""
        return slopes.SILU / _DIVISOR * _UP

    def forward(self, x: Tensor) -> Tensor:
        """x sigmoid(beta x) / 1.1."""
        return _swish(x, self.sharpness) / _DIVISOR


@final
class CLipSwish(Stated):
    """(LipSwish(x), LipSwish(-x)) / 1.004 along the channels, which doubles them.

    With g the slope of swish at beta x, the slope at -x is 1 - g, so the constant is sqrt(g^2 + (1 - g)^2)/(1.1 *
    1.004) at the largest g: .999966 (rounded up). Gradients are kept on both half-lines: the slope is at least .64
    everywhere. Reference: Perugachi-Diaz, Tomczak and Bhulai 2021, i-DenseNets.

    Args:
        axis: Axis that is doubled.
    """

    def __init__(self, axis: int = 1, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.axis = axis
        self.sharpness = nn.Parameter(torch.tensor(math.log(math.expm1(0.5)), device=device, dtype=dtype))

    @property
    def gain(self) -> float:
        """sqrt(g^2 + (1 - g)^2) / (1.1 * 1.004) at the largest slope g of swish."""
        g = slopes.SILU
        return math.hypot(g, 1 - g) / (_DIVISOR * _CONCATENATED) * _UP

    def forward(self, x: Tensor) -> Tensor:
        """Both signs, concatenated."""
        both = torch.cat((_swish(x, self.sharpness), _swish(-x, self.sharpness)), self.axis)
        return both / (_DIVISOR * _CONCATENATED)


def _swish(x: Tensor, sharpness: Tensor) -> Tensor:
    return x * torch.sigmoid(functional.softplus(sharpness).to(x.dtype) * x)
