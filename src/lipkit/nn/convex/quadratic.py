"""Convex quadratic functions, whose gradients are the affine transport maps between Gaussians."""

from typing import Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.core.known_constants import require_real


@final
class ConvexQuadratic(nn.Module):
    """f(x) = ||S (x - m)||^2 / 2 + <t, x>, convex for every S; its gradient is S'S (x - m) + t.

    Every affine map x -> A x + c with A symmetric and positive semidefinite is such a gradient. It starts with S = I
    and m = t = 0, so the gradient is the identity. No constant: f grows like a square; its gradient has ||S||^2.
    Reference: Bunne et al. 2022 for the start; Dowson and Landau 1982 for the map between Gaussians.

    Args:
        features: Entries of an input, on its last axis.
    """

    def __init__(self, features: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if features < 1:
            raise ArgumentError(f"ConvexQuadratic.features must be at least 1, got {features}.")
        require_real(self, dtype)
        self.features = features
        self.root = nn.Parameter(torch.eye(features, device=device, dtype=dtype))
        self.center = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))
        self.shift = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))

    @classmethod
    def between_gaussians(
        cls,
        mean: Float[Tensor, " d"],
        covariance: Float[Tensor, "d d"],
        to_mean: Float[Tensor, " d"],
        to_covariance: Float[Tensor, "d d"],
    ) -> Self:
        """The potential whose gradient takes N(mean, covariance) to N(to_mean, to_covariance) at the least cost.

            T(x) = to_mean + A (x - mean),   A = C^(-1/2) (C^(1/2) D C^(1/2))^(1/2) C^(-1/2)

        for the covariances C, which must have full rank, and D. Computed in float64, stored in the type of `mean`.
        """
        first, second = covariance.detach().double(), to_covariance.detach().double()
        for name, matrix in (("covariance", first), ("to_covariance", second)):
            symmetric = torch.allclose(matrix, matrix.mT, rtol=1e-5, atol=1e-8 * float(matrix.abs().max()))
            if not symmetric or float(torch.linalg.eigvalsh(matrix)[0]) < -1e-6 * float(matrix.abs().max()):
                raise ArgumentError(
                    f"{name} must be symmetric and positive semidefinite; average it with its transpose."
                )
        values, vectors = torch.linalg.eigh(first)
        if not float(values[0]) > 1e-12 * float(values[-1]):
            raise ArgumentError(
                f"covariance has the eigenvalue {float(values[0]):.3g}, so no map leaves its support; add a multiple "
                "of the identity."
            )
        root = (vectors * values.sqrt()) @ vectors.mT
        inverse = (vectors / values.sqrt()) @ vectors.mT
        # S = B C^(-1/2) with B'B = (C^(1/2) D C^(1/2))^(1/2), so that S'S = A.
        inner, axes = torch.linalg.eigh(root @ second @ root)
        potential = cls(len(mean), mean.device, mean.dtype)
        with torch.no_grad():
            potential.root.copy_((axes * inner.clamp(min=0) ** 0.25) @ axes.mT @ inverse)
            potential.center.copy_(mean)
            potential.shift.copy_(to_mean)
        return potential

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch"]:
        """The value of f at every input."""
        if x.shape[-1:] != (self.features,):
            raise ShapeError(f"ConvexQuadratic({self.features}) got an input of shape {tuple(x.shape)}.")
        return (nn.functional.linear(x - self.center, self.root).square() / 2 + x * self.shift).sum(-1)
