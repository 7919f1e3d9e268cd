"""Projected gradient steps: any optimizer, and the nearest orthonormal matrix after it."""

from typing import Any, final

import torch
from torch import Tensor

from lipkit.optim._optimizer import check_count, check_start, project_, refuse_broken_gradients
from lipkit.optim._wrapper import Closure, Wrapper


@final
class Projected(Wrapper):
    """Projected gradient descent around any optimizer: W <- polar(base step of W), at every `every`-th step.

        optimizer = Projected(torch.optim.SGD(weights, lr=0.1))

    polar(W) = U V' of W = U S V' is the nearest matrix with orthonormal rows or columns. With `every` > 1 the base
    moves freely in between, and a penalty may hold the weights near the manifold meanwhile
    (`lipkit.regularizers.Orthogonality`). Momentum of the base knows nothing of the manifold; `RiemannianSGD` carries
    it along. `lipkit.nn.project` does the same for whole models, other methods, and free numbers of constrained layers.

    Guarantee: orthonormal up to rounding after every projection. Cost: the base step, and three or more Björck steps of
    two products for each matrix; a decomposition where the base left one nearly singular.
    Reference: Béthune 2024, section 2.3.2.

    Args:
        base: The optimizer that takes the steps, on matrices with orthonormal rows or columns.
        every: Number of base steps from one projection to the next.
    """

    def __init__(self, base: torch.optim.Optimizer, every: int = 1) -> None:
        # `taken` is how many steps a group has seen: with `every` it says when the next projection is due.
        super().__init__(base, {"every": every, "taken": 0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A further group, of this optimizer and of the wrapped one, its parameters orthonormal."""
        found = param_group["params"]
        param_group["params"] = [found] if isinstance(found, Tensor) else list(found)
        for parameter in param_group["params"]:
            check_start(parameter)
        super().add_param_group(param_group)

    def check(self, group: dict[str, Any]) -> None:
        """A period that is a whole number from 1 on."""
        check_count("every", group["every"])

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of the base, and the projection if it is due; returns what the base returns.

        Gradients on a CPU that are not finite are refused before the base moves. A GPU is not waited for; there the
        projection refuses what they leave.
        """
        if closure is None:
            self._check_gradients()
            loss = self.base.step()
        else:
            loss = self.base.step(lambda: self._evaluate(closure))
        for group in self.param_groups:
            group["taken"] += 1
            if group["taken"] % group["every"] == 0:
                project_(parameter for parameter in group["params"] if parameter.grad is not None)
        return loss

    def _evaluate(self, closure: Closure) -> Any:
        loss = closure()
        self._check_gradients()
        return loss

    def _check_gradients(self) -> None:
        refuse_broken_gradients(p for group in self.param_groups for p in group["params"] if p.device.type == "cpu")
