"""Linear residual weights: the identity plus a free part, divided by a certified norm."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._base import Blocks, Promise
from lipkit.nn.methods.spectral_normalization import DividedByNorm


@final
@dataclass(frozen=True)
class LinearResidual(DividedByNorm):
    """(I + Q) / b with free Q and a certified b >= ||I + Q||: the linear residual layer of LiResNet, as a method.

    Use it in lnn.Linear(n, n, method=LinearResidual()) or lnn.Conv2d(n, n, 3, padding=1, method=LinearResidual()): the
    identity is one at the central tap, so the layer keeps the size of the image and starts near the identity.

    Guarantee: norm at most 1 as stored, as `Spectral`. Q = 0 is the identity up to the slack of the norm (none for
    matrices, at most `slack` for kernels). Cost: that of `Spectral`. Reference: Hu et al. 2023, who estimate the norm
    by power iteration and count it in the product of the network; the certified norm is ours.

    Args:
        steps: Gram products; each halves the logarithm of the excess.
        slack: Largest relative excess that the grid of frequencies may add, for kernels.
    """

    def __str__(self) -> str:
        return f"linear residual, {self.steps} Gram steps"

    def promise(self, geometry: Geometry) -> Promise:
        if geometry.rows != geometry.cols:
            raise UnsupportedError(
                f"LinearResidual adds the identity, which needs as many outputs as inputs in each group, got "
                f"{geometry.rows} and {geometry.cols}; use Spectral."
            )
        return Promise.CONTRACTION

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        total = raw.to(torch.float64) + identity(geometry, raw)
        return store(self.divide(total, geometry), raw.dtype)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Blocks:
        """W - I; exact for weights whose certified norm is 1."""
        return weight - identity(geometry, weight)

    def start(self, geometry: Geometry) -> Blocks:
        """I + Q with normal entries of standard deviation 0.1/sqrt(fan-in), divided by its norm."""
        total = torch.randn(geometry.shape) * (0.1 / math.prod(geometry.shape[2:]) ** 0.5)
        return self(total, geometry)


def identity(geometry: Geometry, like: Tensor) -> Float64[Tensor, "groups rows cols *taps"]:
    """The identity at the central tap."""
    eye = torch.eye(geometry.rows, dtype=torch.float64, device=like.device)
    for t in reversed(geometry.taps):
        place = torch.arange(t, device=like.device) == (t - 1) // 2
        eye = eye.unsqueeze(2) * place.to(torch.float64).reshape(-1, *(1,) * (eye.ndim - 2))
    return eye.expand(geometry.shape)
