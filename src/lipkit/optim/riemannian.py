"""Gradient descent along the manifold of orthonormal matrices."""

from collections.abc import Iterable, Sequence
from typing import Any, final

from jaxtyping import Inexact
from torch import Tensor

from lipkit.optim._batched import BatchedOptimizer
from lipkit.optim._optimizer import tangent
from lipkit.optim.retraction import QRRetraction, Retraction


@final
class RiemannianSGD(BatchedOptimizer):
    """Stochastic gradient descent on the Stiefel manifold: parameters stay orthonormal, without a parametrization.

        m <- momentum * proj_W(m) + proj_W(gradient),   W <- retraction(W, -lr m),

    where proj_W is the projection on the tangent space: it also carries the momentum from one point to the next.
    Parameters are matrices (or kernels with one tap) with orthonormal rows or columns; others are refused. Complex ones
    may be unitary. Matrices of equal shape are moved together.

    Guarantee: orthonormal up to rounding after every step, however long; prove a model with `lipkit.certificate`.
    Cost: four products and the retraction for each matrix. Reference: Béthune 2024, equation 2.18; Absil et al. 2008.

    Args:
        params: Matrices with orthonormal rows or columns, or groups of them.
        lr: Length of a step along the tangent vector.
        momentum: Decay of the momentum, in [0, 1).
        retraction: Way back to the manifold; `QRRetraction()` if None.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        lr: float,
        momentum: float = 0.0,
        retraction: Retraction | None = None,
    ) -> None:
        self.retraction = QRRetraction() if retraction is None else retraction
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def __getstate__(self) -> dict[str, Any]:
        """With the retraction, which copies need too."""
        return {**super().__getstate__(), "retraction": self.retraction}

    def advance(
        self,
        members: Sequence[Tensor],
        points: Inexact[Tensor, "batch long short"],
        gradients: Inexact[Tensor, "batch long short"],
        group: dict[str, Any],
    ) -> Inexact[Tensor, "batch long short"]:
        """The retraction of a step along the momentum."""
        direction = tangent(points, gradients)
        if group["momentum"]:
            before = self.remembered(members, "momentum", points)
            direction = direction + group["momentum"] * tangent(points, before)
            self.remember(members, "momentum", direction)
        return self.retraction(points, -group["lr"] * direction)
