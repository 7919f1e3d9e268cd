"""An invertible residual network: a density of vectors that can be evaluated and drawn from."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations.lip_swish import CLipSwish
from lipkit.nn.combinators.scale import Scale
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods.spectral_normalization import Spectral
from lipkit.nn.networks._images import check_counts
from lipkit.nn.residual.invertible import InvertibleResidual, InvertibleSequential
from lipkit.nn.residual.log_determinant import DenseJacobian, LogDeterminantMethod

# Units of layers of norm one see small numbers, where smooth activations are nearly linear: f(a x) / a is not.
_SHARPNESS = 8.0


@final
class InvertibleResNet(Stated):
    """z = F(x), a chain of blocks x + g(x) with ||g||_Lip <= contraction < 1: a normalising flow of vectors.

        log p(x) = log N(F(x); 0, I) + log |det DF(x)|

    Each g has two hidden layers with CLipSwish and certified spectral normalisation. Draws and densities need the
    constants of the g, which `condense` forgets with the methods: work inside `lipkit.nn.frozen(flow)` instead.

    Guarantee: F has constant (1 + c)^depth, its inverse (1 - c)^-depth, c the contraction; `flow.inverse` states its
    error. Densities are exact up to rounding with `DenseJacobian`, estimates by other methods. Cost: a density takes
    `features` backward passes with `DenseJacobian`; a draw about log(error)/log(c) evaluations of each block.
    Reference: Behrmann et al. 2019; Chen et al. 2019.

    Args:
        features: Length of the vectors.
        depth: Number of blocks.
        width: Hidden units of each block.
        contraction: Largest constant of each g, in (0, 1).
    """

    def __init__(self, features: int, *, depth: int = 8, width: int = 32, contraction: float = 0.9) -> None:
        super().__init__()
        check_counts("InvertibleResNet", features=features, depth=depth, width=width)
        self.features = features
        blocks = (InvertibleResidual(_branch(features, width), contraction) for _ in range(depth))
        self.flow = InvertibleSequential(*blocks)

    @property
    def gain(self) -> float:
        """The constant of F."""
        return self.flow.gain

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        """z = F(x)."""
        return self.flow(x)

    def log_density(
        self,
        x: Float[Tensor, "batch features"],
        method: LogDeterminantMethod = DenseJacobian(),  # noqa: B008 - immutable
    ) -> Float[Tensor, " batch"]:
        """log p(x) in nats; its negative mean is the loss of maximum likelihood.

        Args:
            method: How log-determinants are found: `DenseJacobian` exactly, `RussianRoulette` for many features.
        """
        found = self.flow.log_determinant(x, method)
        return found.value - found.image.square().sum(1) / 2 - self.features / 2 * math.log(2 * math.pi)

    @torch.no_grad()
    def sample(
        self, count: int, tolerance: float | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "count features"]:
        """Draw from p: the inverse of normal numbers.

        Args:
            count: Number of draws.
            tolerance: Largest allowed error of each; None: as near as the type allows.
            generator: Source of the normal numbers, on the CPU; None: torch's own.
        """
        if not isinstance(count, int) or count < 1:
            raise ArgumentError(f"InvertibleResNet.sample needs a whole count of at least 1, got {count}.")
        if tolerance is not None and not tolerance > 0:
            raise ArgumentError(f"tolerance must be a positive distance, got {tolerance}; None is as near as possible.")
        like = next(self.parameters())
        z = torch.randn(count, self.features, generator=generator, dtype=torch.float64).to(like)
        return self.flow.inverse(z, tolerance).point


def _branch(features: int, width: int) -> nn.Module:
    method = Spectral(steps=4)
    return nn.Sequential(
        *(Scale(_SHARPNESS), Linear(features, width, method=method), CLipSwish()),
        *(Linear(2 * width, width, method=method), CLipSwish()),
        *(Linear(2 * width, features, method=method), Scale(1 / _SHARPNESS)),
    )
