"""Exact signed distances of solids in closed form: balls, half-spaces, boxes."""

from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.float64 import gamma
from lipkit.sdf._base import Field


@final
class Sphere(Field):
    """The ball of a center and a radius: f(x) = radius - |x - center|.

    Guarantee: the exact signed distance, K = 1. Cost: O(d) a point.
    """

    def __init__(self, center: Float[Tensor, " d"], radius: float) -> None:
        self.center: Float64[Tensor, " d"] = check_vector(center, "center")
        if not 0 < radius < float("inf"):
            raise ArgumentError(f"A ball has a finite radius > 0, got {radius}.")
        self.radius: float = float(radius)

    @property
    def dim(self) -> int:
        return len(self.center)

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return self.radius - torch.linalg.vector_norm(points - self.center.to(points.device), dim=1)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        # A difference is rounded relative to itself, so the length carries d + 4 roundings and the result one more.
        del points
        return gamma(self.dim + 8) * (values.abs() + 2 * self.radius)


def check_vector(given: Float[Tensor, " d"], name: str) -> Float64[Tensor, " d"]:
    """A finite vector in float64."""
    found = torch.as_tensor(given, dtype=torch.float64).detach().clone()
    if found.ndim != 1 or len(found) == 0:
        raise ShapeError(f"{name} is a vector, got shape {tuple(found.shape)}.")
    if not bool(torch.isfinite(found).all()):
        raise NonFiniteError(f"{name} has entries that are NaN or infinite: {found.tolist()[:8]}.")
    return found
