"""Gradient descent along the manifold of orthonormal matrices."""

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor

from lipkit.optim._optimizer import StiefelOptimizer, as_matrix, tall, tangent
from lipkit.optim.retraction import QRRetraction, Retraction


@final
class RiemannianSGD(StiefelOptimizer):
    """Stochastic gradient descent on the Stiefel manifold: parameters stay orthonormal, without a parametrization.

        m <- momentum * proj_W(m) + proj_W(gradient),   W <- retraction(W, -lr m),

    where proj_W is the projection on the tangent space: it also carries the momentum from one point to the next.
    Parameters are matrices (or kernels with one tap) with orthonormal rows or columns; others are refused.

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

    def move(self, group: dict[str, Any]) -> None:
        """One step for every parameter of the group that has a gradient."""
        for parameter in group["params"]:
            if parameter.grad is not None:
                self._move(parameter, group["lr"], group["momentum"])

    def _move(self, parameter: Tensor, lr: float, momentum: float) -> None:
        assert parameter.grad is not None, "only parameters with gradients are moved"
        # Factorisations need float32 at least.
        wide = torch.promote_types(parameter.dtype, torch.float32)
        point = tall(as_matrix(parameter)).to(wide)
        direction = tangent(point, tall(as_matrix(parameter.grad)).to(wide))
        if momentum:
            state = self.state[parameter]
            if "momentum" in state:
                direction = direction + momentum * tangent(point, state["momentum"].to(wide))
            # In the type to which torch casts what it loads, so that a run resumes to the bit.
            state["momentum"] = direction.to(parameter.dtype)
        tall(as_matrix(parameter)).copy_(self.retraction(point, -lr * direction))
