"""The base of optimizers on orthonormal matrices: tangent vectors, and the checks that optimizers share."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, LipkitError, ShapeError

# A start may be this far from orthonormal: float32 rounding or a bfloat16 copy leaves less.
_START = 0.1
# A Björck step may be off by this many units of the last digit: its sums are as long as the matrix.
_ROUNDINGS = 64


def tall(matrix: Float[Tensor, "*batch rows cols"]) -> Float[Tensor, "*batch long short"]:
    """The matrix or its transpose, whichever has at least as many rows as columns; a view."""
    return matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT


def tangent(
    point: Float[Tensor, "*batch rows cols"], direction: Float[Tensor, "*batch rows cols"]
) -> Float[Tensor, "*batch rows cols"]:
    """The nearest tangent vector, G - W sym(W'G), for tall matrices: W'Z + Z'W = 0. Cost: two products."""
    inner = point.mT @ direction
    return direction - point @ ((inner + inner.mT) / 2)


def as_matrix(parameter: Tensor) -> Float[Tensor, "rows cols"]:
    """A parameter of two axes, or of a convolution with one tap, as a matrix; a view. Others are refused."""
    if parameter.ndim < 2 or any(n != 1 for n in parameter.shape[2:]):
        raise ShapeError(
            f"Optimizers on orthogonal matrices take matrices (and kernels with one tap), got shape "
            f"{tuple(parameter.shape)}; give other parameters to an ordinary optimizer."
        )
    return parameter.flatten(1)


def distance_from_orthonormal(matrix: Float[Tensor, "long short"]) -> float:
    """||W'W - I||_F / n^(1/2), in float64: about the root mean square of what squared singular values differ from 1."""
    wide = matrix.detach().to(torch.float64)
    identity = torch.eye(wide.shape[1], dtype=wide.dtype, device=wide.device)
    return float(torch.linalg.matrix_norm(wide.mT @ wide - identity)) / max(1, wide.shape[1]) ** 0.5


def is_orthonormal(matrix: Float[Tensor, "long short"]) -> bool:
    """Whether the columns are orthonormal up to what products in the type of the matrix round."""
    return distance_from_orthonormal(matrix) <= _ROUNDINGS * torch.finfo(matrix.dtype).eps


def check_start(parameter: Tensor) -> None:
    """Refuse a matrix that is far from orthonormal: steps along the manifold would mean nothing there."""
    distance = distance_from_orthonormal(tall(as_matrix(parameter)))
    if not distance <= _START:
        raise ArgumentError(
            f"A parameter of shape {tuple(parameter.shape)} is not orthonormal (||W'W - I||_F/sqrt(n) {distance:.3g}); "
            "start with torch.nn.init.orthogonal_ or lipkit.nn.project."
        )


def check_rate(name: str, value: float, least: float = 0.0, below: float = float("inf")) -> None:
    """Refuse a hyper-parameter outside [least, below)."""
    if not least <= value < below:
        raise ArgumentError(f"{name} must lie in [{least:g}, {below:g}), got {value}.")


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
