"""Descent towards the manifold of orthonormal matrices without a way back: the landing field."""

from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Float64, Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.optim._batched import BatchedOptimizer, stacked
from lipkit.optim._nearest import defect
from lipkit.optim._optimizer import check_digits

# Rounding may add this part of the radius to a distance: products of float32 with sums of 1e5 terms add less.
_SLACK = 2.0**-6


@final
class Landing(BatchedOptimizer):
    """Steps along a field that descends and is drawn to the manifold at the same time: no retraction, products only.

        m <- momentum m + gradient;   D = W'W - I;   F = 1/2 (m W' - W m') W + attraction W D;   W <- W - h F.

    The two parts are orthogonal. Since W'F + F'W = 2 attraction (D + D^2), with d = ||D||_F and f = ||F||_F
        ||D_next||_F <= (1 - 2 h attraction (1 - d)) d + h^2 f^2   for h <= 1 / (2 attraction),
    so that with radius r < 1
        h = min(lr, 1 / (2 attraction), (b + (b^2 + f^2 (r - d))^(1/2)) / f^2),   b = attraction d (1 - d),
    never leaves ||W'W - I||_F <= r. Singular values stay in [(1 - r)^(1/2), (1 + r)^(1/2)]; near an optimum the field
    vanishes, and W lands. Complex matrices may be unitary. Matrices of equal shape are moved together.

    Guarantee: ||W'W - I||_F at most `radius` after every step, whatever the gradients, in exact arithmetic; call
    `retract` before a proof. Cost: four products for each matrix.
    Reference: Ablin and Peyré 2022; Ablin, Vary, Gao and Absil 2024 for tall matrices and the safe step.

    Args:
        params: Matrices with orthonormal rows or columns, or groups of them.
        lr: Size of a step, shortened where it would leave the radius.
        momentum: Decay of the momentum, in [0, 1).
        attraction: Weight of the pull towards the manifold, positive.
        radius: Largest ||W'W - I||_F, in (0, 1).
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        lr: float,
        momentum: float = 0.0,
        attraction: float = 1.0,
        radius: float = 0.5,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "attraction": attraction, "radius": radius})

    def check(self, group: dict[str, Any]) -> None:
        """Check rates, that the matrices lie within the radius, and that this is less than one."""
        for name, end in (("attraction", float("inf")), ("radius", 1.0)):
            if not 0 < group[name] < end:
                raise ArgumentError(f"{name} must lie in (0, {end:g}), got {group[name]}.")
        super().check(group)
        for parameter in group["params"]:
            wide = stacked([parameter.detach()])
            self._check_distances(torch.linalg.matrix_norm(defect(wide)), group["radius"])

    def check_parameter(self, parameter: Tensor) -> None:
        """Refuse types in which the distance is not known well, and matrices far from orthonormal."""
        check_digits(self, parameter)
        super().check_parameter(parameter)

    def advance(
        self,
        members: Sequence[Tensor],
        points: Inexact[Tensor, "batch long short"],
        gradients: Inexact[Tensor, "batch long short"],
        group: dict[str, Any],
    ) -> Inexact[Tensor, "batch long short"]:
        """A step along the field, as long as it is safe."""
        if group["momentum"]:
            gradients = gradients + group["momentum"] * self.remembered(members, "momentum", points)
        off = defect(points)
        field = landing_field(points, gradients, off, group["attraction"])
        distance, size = (_length(x) for x in (off, field))
        self._check_distances(distance, group["radius"])
        if not bool(size.isfinite().all()):
            raise NonFiniteError(
                "The field of a step leaves the range of its type, so the matrices stay where they are; clip gradients."
            )
        if group["momentum"]:
            self.remember(members, "momentum", gradients)
        length = safe_step(distance, size, group["attraction"], group["radius"]).clamp(max=group["lr"])
        return points - length.to(points.dtype)[:, None, None] * field

    def _check_distances(self, distances: Float[Tensor, " batch"], radius: float) -> None:
        largest = float(distances.amax())
        if not largest <= radius * (1 + _SLACK):
            raise ArgumentError(
                f"A matrix has ||W'W - I||_F = {largest:.3g}, beyond the radius {radius:g} in which steps are safe; "
                "call lipkit.nn.orthonormal_ on the weights first."
            )


def landing_field(
    points: Inexact[Tensor, "batch long short"],
    gradients: Inexact[Tensor, "batch long short"],
    off: Inexact[Tensor, "batch short short"],
    attraction: float,
) -> Inexact[Tensor, "batch long short"]:
    """1/2 (G W' - W G') W + attraction W D for D = W'W - I. Cost: three products."""
    inner = gradients.mH @ points / 2 - attraction * off
    return (gradients + gradients @ off) / 2 - points @ inner


def safe_step(
    distance: Float[Tensor, " batch"], size: Float[Tensor, " batch"], attraction: float, radius: float
) -> Float[Tensor, " batch"]:
    """The longest step along a field of this size that is proven to end within the radius."""
    # In units of the size, whose square may leave the range of floats.
    size = size.clamp(min=torch.finfo(size.dtype).tiny)
    pull = attraction * distance * (1 - distance) / size
    root = (pull.square() + (radius - distance).clamp(min=0)).sqrt()
    return ((pull + root) / size).clamp(max=1 / (2 * attraction))


def _length(matrices: Inexact[Tensor, "batch rows cols"]) -> Float64[Tensor, " batch"]:
    """Frobenius norms in float64, in units of the largest entries: no square overflows."""
    wide = matrices.to(torch.promote_types(matrices.dtype, torch.float64))
    largest = wide.abs().amax((-2, -1)).clamp(min=torch.finfo(torch.float64).tiny)
    return largest * torch.linalg.matrix_norm(wide / largest[:, None, None])
