"""Fields: functions of points with a proven Lipschitz constant, positive inside of what they describe."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Scope
from lipkit.certify.radii.radius import require_certifying
from lipkit.errors import ArgumentError, KindError, NonFiniteError, ShapeError
from lipkit.regions import L2, Everywhere
from lipkit.sdf.gradients_allowed import gradients_allowed


@final
@dataclass(frozen=True, eq=False)
class Readings:
    """Values of a field in float64; the true value of each lies within its error."""

    value: Float64[Tensor, " n"]
    error: Float64[Tensor, " n"]


class Field(ABC):
    """A function f of R^d with |f(x) - f(y)| <= K |x - y|, positive inside and negative outside.

    So f has no zero within |f(x)|/K of x. Exact fields are signed distances, with K = 1. Values are computed in
    float64, and `measure` bounds their rounding errors, which every step and every radius of this package counts.

    A subclass gives `dim`, `bound`, `_values` and `_errors`; it may give `_measure` or `gradient` where both can be had
    in one pass or in closed form.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim})"

    @property
    @abstractmethod
    def dim(self) -> int:
        """How many coordinates a point has."""

    @property
    @abstractmethod
    def bound(self) -> Bound:
        """The constant K, in l2, for all points; it certifies."""

    @abstractmethod
    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """f at points that were checked, differentiable in them."""

    @abstractmethod
    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        """Upper bounds of |_values(points) - f(points)|, for values without gradient."""

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        values = self._values(points)
        return Readings(values, self._errors(points, values))

    def is_known_to_equal(self, other: "Field") -> bool:
        """Whether what was proven of another field holds for this one: it is the same object, or the same function."""
        return self is other

    def __call__(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """Values at n points, differentiable in them."""
        found = self._values(check_points(x, self.dim))
        self._require_finite(found.detach())
        return found

    def gradient(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        """Gradients at n points, by autograd; where f has a kink, one of its generalised gradients."""
        with gradients_allowed(self):
            points = check_points(x, self.dim).detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(self(points).sum(), points)
        return found

    def measure(self, x: Float[Tensor, "n d"]) -> Readings:
        """Values at n points, each with a bound of its rounding error. Guarantee: |value - f(x)| <= error."""
        with torch.no_grad():
            found = self._measure(check_points(x, self.dim))
        self._require_finite(found.value, found.error)
        return found

    def _require_finite(self, *found: Float64[Tensor, " n"]) -> None:
        if not all(bool(torch.isfinite(one).all()) for one in found):
            raise NonFiniteError(f"{type(self).__name__} has no finite value at some points; are they too far out?")


def check_points(x: Float[Tensor, "n d"], dim: int) -> Float64[Tensor, "n d"]:
    """Points in float64, if there are `dim` finite numbers for each."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ArgumentError(
            f"Points are a tensor of floating-point numbers, got {x.dtype if isinstance(x, Tensor) else type(x)}; "
            "convert them with torch.as_tensor(x, dtype=torch.float64)."
        )
    if x.ndim != 2 or x.shape[1] != dim:
        raise ShapeError(f"Points have shape (n, {dim}) here, got {tuple(x.shape)}.")
    if not bool(torch.isfinite(x.detach()).all()):
        raise NonFiniteError("Some points have coordinates that are NaN or infinite; remove them first.")
    return x.to(torch.float64)


def require_field(found: Field) -> None:
    """Refuse what is no field, such as a function or a module."""
    if not isinstance(found, Field):
        raise ArgumentError(
            f"A field is needed here, got {type(found).__name__}; sdf.Network makes one of a module, sdf.Function of a "
            "function."
        )


def constant_of(field: Field) -> float:
    """The constant of a field as a number, rounded up, if it is in l2 and holds everywhere."""
    require_field(field)
    bound = field.bound
    require_certifying(bound)
    if bound.metric != L2 or bound.of is not Scope.WHOLE or bound.region != Everywhere():
        raise KindError(f"A field has one constant in l2 that holds everywhere, got {bound}.")
    return float(bound.value.detach())
