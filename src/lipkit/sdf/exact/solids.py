"""Exact signed distances of solids in closed form: balls, half-spaces, boxes."""

from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.float64 import gamma, normalize
from lipkit.rounding.slacks import ROUNDINGS_4
from lipkit.sdf._base import Field
from lipkit.sdf.exact.lengths import length_error, lengths, underflow
from lipkit.sdf.given_numbers import as_number, as_reals


@final
class Sphere(Field):
    """The ball of a center and a radius: f(x) = radius - |x - center|.

    Guarantee: the exact signed distance, K = 1. Cost: O(d) a point.
    """

    def __init__(self, center: Float[Tensor, " d"], radius: float) -> None:
        self.center: Float64[Tensor, " d"] = check_vector(center, "center")
        self.radius: float = as_number(radius, "radius")
        if not 0 < self.radius < float("inf"):
            raise ArgumentError(f"A ball has a finite radius > 0, got {radius}.")

    @property
    def dim(self) -> int:
        return len(self.center)

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return self.radius - lengths(points - self.center.to(points.device))

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del points
        # The length is at most |f| + radius, and the result is rounded once more.
        return length_error(self.dim, 2 * (values.abs() + self.radius))


@final
class HalfSpace(Field):
    """The points x with <normal, x> <= offset: f(x) = (offset - <normal, x>) / |normal|.

    The normal points out of the solid, as in a polytope A x <= b, and need not have length one.

    Guarantee: the exact signed distance, K = 1. Cost: O(d) a point.
    """

    def __init__(self, normal: Float[Tensor, " d"], offset: float) -> None:
        self.normal: Float64[Tensor, " d"] = check_vector(normal, "normal")
        self.offset: float = as_number(offset, "offset")
        largest = self.normal.abs().max()
        if not largest > 0:
            raise ArgumentError("A half-space needs a normal that is not zero.")
        # By a power of two, so that neither its length nor products with it overflow.
        scaled, exponent = normalize(self.normal[None], "A half-space")
        self._normal = scaled[0]
        self._offset = _divide(self.offset, int(exponent))
        if not abs(self._offset) < float("inf"):
            raise NonFiniteError(f"A half-space has a finite offset / |normal|, got {offset} / {float(largest)}.")
        self._length = float(torch.linalg.vector_norm(self._normal))

    @property
    def dim(self) -> int:
        return len(self.normal)

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return (self._offset - points @ self._normal.to(points.device)) / self._length

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        # Products may cancel, so they count by their sizes; the length of the normal is off by a factor.
        size = points.abs() @ self._normal.abs().to(points.device) + abs(self._offset)
        return gamma(2 * self.dim + 16) * size / self._length + underflow(self.dim)


@final
class Box(Field):
    """The box of two corners, low_i <= x_i <= high_i: with q = max(low - x, x - high),

        f(x) = -|max(q, 0)| outside and min_i -q_i inside.

    Guarantee: the exact signed distance, K = 1. Cost: O(d) a point.
    """

    def __init__(self, low: Float[Tensor, " d"], high: Float[Tensor, " d"]) -> None:
        self.low: Float64[Tensor, " d"] = check_vector(low, "low")
        self.high: Float64[Tensor, " d"] = check_vector(high, "high")
        if self.low.shape != self.high.shape:
            raise ShapeError(f"Two corners have as many entries, got {len(self.low)} and {len(self.high)}.")
        if not bool((self.low < self.high).all()):
            at = int((self.low >= self.high).nonzero()[0])
            raise ArgumentError(
                f"A box has low < high, got {float(self.low[at])} and {float(self.high[at])} for coordinate {at}."
            )

    @property
    def dim(self) -> int:
        return len(self.low)

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        beyond = torch.maximum(self.low.to(points.device) - points, points - self.high.to(points.device))
        return -lengths(beyond.clamp(min=0)) - beyond.amax(1).clamp(max=0)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del points
        # One of the two terms is zero, and every difference is rounded relative to itself.
        return length_error(self.dim, values.abs()) + ROUNDINGS_4 * values.abs()


def _divide(number: float, exponent: int) -> float:
    """number / 2^exponent, infinite where it overflows."""
    # In two steps, for the power alone may overflow.
    half = exponent // 2
    return number * 2.0**-half * 2.0 ** (half - exponent)


def check_vector(given: Float[Tensor, " d"], name: str) -> Float64[Tensor, " d"]:
    """A finite vector in float64."""
    found = as_reals(given, name)
    if found.ndim != 1 or len(found) == 0:
        raise ShapeError(f"{name} is a vector, got shape {tuple(found.shape)}.")
    if not bool(torch.isfinite(found).all()):
        raise NonFiniteError(f"{name} has entries that are NaN or infinite: {found.tolist()[:8]}.")
    return found
