"""Adam along the manifold of orthonormal matrices."""

from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.optim._batched import BatchedOptimizer
from lipkit.optim._optimizer import check_digits, check_rate, tangent
from lipkit.optim.retraction import QRRetraction, Retraction


@final
class RiemannianAdam(BatchedOptimizer):
    """Adam on the Stiefel manifold: the second moment is one number for each matrix, so that steps stay tangent.

        g = proj_W(gradient);   m <- b1 proj_W(m) + (1 - b1) g;   v <- b2 v + (1 - b2) ||g||_F^2 / entries;
        W <- retraction(W, -lr m^ / (v^^(1/2) + eps)),   m^ = m / (1 - b1^t),   v^ = v / (1 - b2^t).

    Moments of single entries would turn the step out of the tangent space. The authors take ||g||_F^2; its mean over
    the entries makes `lr` what it is for torch.optim.Adam, about the move of an entry, in matrices of every size: their
    rate is `lr` times the root of the number of entries. Complex matrices may be unitary. Matrices of equal shape are
    moved together.

    Guarantee: orthonormal up to rounding after every step, however long. Cost: four products and the retraction for
    each matrix. Reference: Bécigneul and Ganea 2019; Li, Fuxin and Todorovic 2020 for the Stiefel manifold.

    Args:
        params: Matrices with orthonormal rows or columns, or groups of them.
        lr: Size of a step: entries move by about so much.
        betas: Decays of the two moments, in [0, 1).
        eps: Added to the root of the second moment.
        retraction: Way back to the manifold; `QRRetraction()` if None.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        retraction: Retraction | None = None,
    ) -> None:
        self.retraction = QRRetraction() if retraction is None else retraction
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def __getstate__(self) -> dict[str, Any]:
        """With the retraction, which copies need too."""
        return {**super().__getstate__(), "retraction": self.retraction}

    def check(self, group: dict[str, Any]) -> None:
        """Check rates, decays and parameters."""
        for i, beta in enumerate(group["betas"]):
            check_rate(f"betas[{i}]", beta, below=1.0)
        # A gradient of zero is divided by it.
        check_rate("eps", group["eps"], least=torch.finfo(torch.float32).tiny)
        super().check(group)

    def check_parameter(self, parameter: Tensor) -> None:
        """Refuse types too coarse for moments, and matrices far from orthonormal."""
        check_digits(self, parameter)
        super().check_parameter(parameter)

    def advance(
        self,
        members: Sequence[Tensor],
        points: Inexact[Tensor, "batch long short"],
        gradients: Inexact[Tensor, "batch long short"],
        group: dict[str, Any],
    ) -> Inexact[Tensor, "batch long short"]:
        """The retraction of a step along the first moment, divided by the root of the second."""
        first, second = group["betas"]
        gradient = tangent(points, gradients)
        moment = first * tangent(points, self.remembered(members, "moment", points)) + (1 - first) * gradient
        self.remember(members, "moment", moment)
        scales = torch.stack([self._scale(p, g, second) for p, g in zip(members, gradient.unbind(), strict=True)])
        if not bool(scales.isfinite().all()):
            raise NonFiniteError("The square of a gradient is infinite; scale the loss down.")
        counts = [self.state[p]["step"] for p in members]
        shares = torch.tensor([1 - first**count for count in counts], dtype=scales.dtype, device=scales.device)
        factors = (group["lr"] / shares / (scales + group["eps"]))[:, None, None]
        return self.retraction(points, -factors * moment)

    def _scale(self, parameter: Tensor, gradient: Inexact[Tensor, "long short"], decay: float) -> Tensor:
        """The root of the second moment after this gradient, without the bias of its start."""
        state = self.state[parameter]
        square = gradient.abs().square().mean()
        state["step"] = state.get("step", 0) + 1
        state["square"] = decay * state.get("square", torch.zeros_like(square)) + (1 - decay) * square
        return (state["square"] / (1 - decay ** state["step"])).sqrt()
