"""The base of optimizers on orthonormal matrices, real or complex: tangent vectors, and the checks that they share."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, LipkitError, NonFiniteError, ShapeError
from lipkit.optim._nearest import ROUNDINGS, nearest_orthonormal, normalised_defect

# A start may be this far from orthonormal: float32 rounding or a bfloat16 copy leaves less.
_START = 0.1


def tall(matrix: Inexact[Tensor, "*batch rows cols"]) -> Inexact[Tensor, "*batch long short"]:
    """The matrix or its transpose, whichever has at least as many rows as columns; a view."""
    return matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT


def tangent(
    point: Inexact[Tensor, "*batch rows cols"], direction: Inexact[Tensor, "*batch rows cols"]
) -> Inexact[Tensor, "*batch rows cols"]:
    """The nearest tangent vector, G - W sym(W'G), for tall matrices: W'Z + Z'W = 0. Cost: two products."""
    inner = point.mH @ direction
    return direction - point @ ((inner + inner.mH) / 2)


def as_matrix(parameter: Tensor) -> Inexact[Tensor, "rows cols"]:
    """A parameter of two axes, or of a convolution with one tap, as a matrix; a view. Others are refused."""
    if parameter.ndim < 2 or any(n != 1 for n in parameter.shape[2:]):
        raise ShapeError(
            f"Optimizers on orthogonal matrices take matrices (and kernels with one tap), got shape "
            f"{tuple(parameter.shape)}; give other parameters to an ordinary optimizer."
        )
    return parameter.flatten(1)


def distance_from_orthonormal(matrix: Inexact[Tensor, "long short"]) -> float:
    """||W'W - I||_F / n^(1/2), in float64: about the root mean square of what squared singular values differ from 1."""
    return float(normalised_defect(matrix.detach().to(torch.promote_types(matrix.dtype, torch.float64))))


def is_orthonormal(matrix: Inexact[Tensor, "long short"]) -> bool:
    """Whether the columns are orthonormal up to what products in the type of the matrix round."""
    return distance_from_orthonormal(matrix) <= ROUNDINGS * torch.finfo(matrix.dtype).eps


def check_start(parameter: Tensor) -> None:
    """Refuse a matrix that is far from orthonormal: steps along the manifold would mean nothing there."""
    distance = distance_from_orthonormal(tall(as_matrix(parameter)))
    if not distance <= _START:
        raise ArgumentError(
            f"A parameter of shape {tuple(parameter.shape)} is not orthonormal (||W'W - I||_F/sqrt(n) {distance:.3g}); "
            "start with torch.nn.init.orthogonal_, or call lipkit.nn.orthonormal_([parameter]) first."
        )


def check_digits(owner: object, parameter: Tensor) -> None:
    """Refuse types with fewer digits than float32."""
    if torch.finfo(parameter.dtype).bits < 32:
        raise ArgumentError(
            f"{type(owner).__name__} works in float32 and float64, got {parameter.dtype}; keep weights in float32, and "
            "use torch.autocast to multiply in fewer digits."
        )


def check_count(name: str, value: float) -> None:
    """Refuse what is no whole number from 1 on."""
    check_rate(name, value, least=1)
    if int(value) != value:
        raise ArgumentError(f"{name} is a whole number, got {value}.")


def check_rate(name: str, value: float, least: float = 0.0, below: float = float("inf")) -> None:
    """Refuse a hyper-parameter outside [least, below)."""
    if not least <= value < below:
        raise ArgumentError(f"{name} must lie in [{least:g}, {below:g}), got {value}.")


def refuse_broken_gradients(parameters: Iterable[Tensor]) -> None:
    """Refuse gradients that are sparse or not finite. Cost: one look at each; a GPU is waited for once."""
    members = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    for parameter, gradient in members:
        if gradient.is_sparse:
            raise ArgumentError(
                f"The gradient of a parameter of shape {tuple(parameter.shape)} is sparse, and a step needs all of "
                "it; build the layer without sparse gradients."
            )
    finite = [gradient.isfinite().all().to(members[0][1].device) for _, gradient in members]
    for (parameter, _), fine in zip(members, torch.stack(finite).tolist() if finite else [], strict=True):
        if not fine:
            raise NonFiniteError(
                f"The gradient of a parameter of shape {tuple(parameter.shape)} is NaN or infinite; lower the "
                "learning rate, or clip gradients."
            )


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
        check_rate("momentum", group.get("momentum", 0.0), below=1.0)
        for parameter in group["params"]:
            self.check_parameter(parameter)

    def check_parameter(self, parameter: Tensor) -> None:
        """Refuse a parameter from which steps mean nothing."""
        check_start(parameter)

    def check_gradients(self) -> None:
        """Refuse gradients that would spoil the weights, before the first one moves."""

    @abstractmethod
    def move(self, group: dict[str, Any]) -> None:
        """One step for every parameter of the group that has a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step for every parameter that has a gradient; `closure` recomputes the loss first, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.check_gradients()
        for group in self.param_groups:
            self.move(group)
        return loss

    def retract(self) -> None:
        """Replace every parameter by the orthonormal matrix nearest to it: before evaluation or a proof.

        Cost: products of Björck's iteration; a decomposition in float64 for matrices that are nearly singular.
        """
        for group in self.param_groups:
            project_(group["params"])


@torch.no_grad()
def project_(parameters: Iterable[Tensor]) -> None:
    """Replace each parameter by the orthonormal matrix nearest to it, in place."""
    for parameter in parameters:
        point = tall(as_matrix(parameter))
        wide = point.to(torch.promote_types(point.dtype, torch.float32))
        point.copy_(nearest_orthonormal(wide[None])[0])
