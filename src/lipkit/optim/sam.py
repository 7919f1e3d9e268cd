"""Sharpness-aware minimisation: gradients taken where the loss is worst nearby."""

from abc import abstractmethod
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.optim._wrapper import Closure, Wrapper, check_size, displaced, require_closure


class SharpnessAware(Wrapper):
    """A base step with the gradient at w + e, where e maximises the loss to first order over a ball of radius rho.

    With a positive scaling t of the coordinates the ball is ||e/t|| <= rho and
        e = rho t^2 g / ||t g||,
    the norm over all parameters together. Options of a group apply to it alone; rho 0 leaves its parameters where they
    are, and if all are 0 or there is no gradient, the step is the base's, bit for bit, from one evaluation.
    """

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step; the closure is called twice, and its first loss, at w itself, returned."""
        evaluate = require_closure(closure, self)
        loss = evaluate()
        moves = self._moves()
        if moves:
            # Weights come back exactly: subtracting e again would round.
            with displaced([parameter for parameter, _ in moves]):
                for parameter, move in moves:
                    parameter.add_(move)
                evaluate()
        self.base.step()
        return loss

    def check(self, group: dict[str, Any]) -> None:
        """A radius that is a finite number >= 0."""
        check_size(self, "rho", group["rho"])

    @abstractmethod
    def scaling(self, parameter: Tensor, group: dict[str, Any]) -> Float[Tensor, "..."] | float:
        """t for a parameter."""

    def _moves(self) -> list[tuple[Tensor, Tensor]]:
        scaled: list[tuple[float, Tensor, Tensor | float, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad.to(torch.promote_types(parameter.dtype, torch.float32))
                    t = self.scaling(parameter, group)
                    scaled.append((group["rho"], parameter, t, gradient * t))
        if not any(rho for rho, *_ in scaled):
            return []
        device = scaled[0][1].device
        # In float64: squares of tiny and of huge gradients leave the range of float32.
        sizes = [torch.linalg.vector_norm(tg, dtype=torch.float64).to(device) for *_, tg in scaled]
        size = torch.stack(sizes).norm()
        if not bool(torch.isfinite(size)):
            raise NonFiniteError("A gradient is NaN or infinite; lower the learning rate, or clip gradients.")
        if not bool(size > 0):
            return []
        # Divided first: t g and its norm may both be tiny.
        return [(p, (rho * (tg.double() / size.to(tg.device)) * t).to(p.dtype)) for rho, p, t, tg in scaled if rho]


@final
class SAM(SharpnessAware):
    """Sharpness-aware minimisation around any optimizer: e = rho g/||g||, then a base step with the gradient at w + e.

        optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        optimizer.step(closure)

    Guarantee: none about flatness; rho 0 is the base step. Cost: two evaluations, one copy of the weights. Limits:
    batch statistics are updated in both evaluations; gradient scalers are not supported, use bfloat16; in distributed
    runs gradients must be averaged in both, as DDP does. Reference: Foret, Kleiner, Mobahi, Neyshabur 2021.

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the ball, l2 over all parameters together.
    """

    def __init__(self, base: torch.optim.Optimizer, rho: float = 0.05) -> None:
        super().__init__(base, {"rho": rho})

    def scaling(self, parameter: Tensor, group: dict[str, Any]) -> Float[Tensor, "..."] | float:
        """1: the ball is round."""
        return 1.0


@final
class ASAM(SharpnessAware):
    """Adaptive sharpness-aware minimisation: the ball scales with the weights, t = |w| + eta, elementwise.

    e = rho t^2 g/||t g||, so that rescaling weights between layers, which leaves the function as it is, leaves the
    sharpness as it is too (for eta 0). A group with `adaptive=False` has t = 1, as the authors use for biases.

    Guarantee, cost and limits: as `SAM`. Reference: Kwon, Kim, Park, Choi 2021 (rho 0.5 to 2, eta 0.01).

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the ball in scaled coordinates.
        eta: Added to |w|, so that zero weights move too.
        adaptive: Whether coordinates are scaled; groups may differ.
    """

    def __init__(self, base: torch.optim.Optimizer, rho: float = 0.5, eta: float = 0.01, adaptive: bool = True) -> None:
        super().__init__(base, {"rho": rho, "eta": eta, "adaptive": adaptive})

    def check(self, group: dict[str, Any]) -> None:
        """A radius and an offset that are finite numbers >= 0."""
        super().check(group)
        check_size(self, "eta", group["eta"])

    def scaling(self, parameter: Tensor, group: dict[str, Any]) -> Float[Tensor, "..."] | float:
        """|w| + eta for every entry, 1 in groups that are not adaptive."""
        if not group["adaptive"]:
            return 1.0
        return parameter.abs().to(torch.promote_types(parameter.dtype, torch.float32)) + group["eta"]
