"""The base of optimizers on orthonormal matrices."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from lipkit.errors import LipkitError
from lipkit.optim._stiefel import check_rate, check_start


class StiefelOptimizer(torch.optim.Optimizer):
    """An optimizer whose parameters have orthonormal rows or columns; a group that has not is refused."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A further group, checked as the first are: rates in range, parameters orthonormal."""
        super().add_param_group(param_group)
        try:
            self.check(self.param_groups[-1])
        except LipkitError:
            self.param_groups.pop()
            raise

    def check(self, group: dict[str, Any]) -> None:
        """Refuse a group with rates out of range or parameters that are not orthonormal."""
        check_rate("lr", group["lr"])
        check_rate("momentum", group["momentum"], below=1.0)
        for parameter in group["params"]:
            check_start(parameter)

    @abstractmethod
    def move(self, group: dict[str, Any]) -> None:
        """One step for every parameter of the group that has a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step for every parameter that has a gradient; `closure` recomputes the loss first, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.move(group)
        return loss
