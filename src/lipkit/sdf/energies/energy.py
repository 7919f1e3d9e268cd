"""Densities on a box whose logarithm is Lipschitz."""

import math
from typing import final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError
from lipkit.rounding.float64 import round_up, vector_norms
from lipkit.rounding.slacks import UNIT
from lipkit.sdf._base import Field, Readings, check_points, constant_of, require_field
from lipkit.sdf.combined.blends import ExponentialBlend, SmoothIntersection
from lipkit.sdf.combined.offsets import Offset
from lipkit.sdf.energies.energy_sums import SignedSum
from lipkit.sdf.given_numbers import as_reals, as_whole


@final
class Energy:
    """The density p(x) = exp(-E(x)) / Z on a box, and zero outside; the energy E is a field of constant K.

        |log p(x) - log p(y)| = |E(x) - E(y)| <= K |x - y|   for x, y in the box.

    So points at distance r have densities whose ratio is at most exp(K r), whatever Z is. The box is part of the
    model: the integral of exp(-E) over the whole space need not be finite (E(x) = |x_1| in the plane), and on a box it
    always is. An energy is low where points are likely, the opposite of a field that is positive inside.

    Guarantee: log p has the constant of E on the box. Cost: none.

    Args:
        field: The energy E.
        low: Lower ends of the box, finite; one number for all coordinates, or one for each.
        high: Upper ends of the box, each above its lower end.
    """

    def __init__(self, field: Field, low: Float[Tensor, " d"] | float, high: Float[Tensor, " d"] | float) -> None:
        require_field(field)
        self.field = field
        self.low: Float64[Tensor, " d"] = _ends(low, "low", field.dim)
        self.high: Float64[Tensor, " d"] = _ends(high, "high", field.dim)
        sides = self.high - self.low
        if not bool((sides > 0).all()) or not bool(torch.isfinite(sides).all()):
            raise ArgumentError(
                f"The box of an energy has low < high in every coordinate, got {self.low.tolist()[:8]} and "
                f"{self.high.tolist()[:8]}."
            )

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.field.dim

    @property
    def bound(self) -> Bound:
        """The constant of E, which is that of log p on the box."""
        return self.field.bound

    def contains(self, x: Float[Tensor, "n d"]) -> Bool[Tensor, " n"]:
        """Whether each point lies in the box, its ends included."""
        points = check_points(x, self.dim)
        return ((points >= self.low.to(points.device)) & (points <= self.high.to(points.device))).all(1)

    def require_inside(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        """Points in float64, if all of them lie in the box."""
        points, inside = check_points(x, self.dim), self.contains(x)
        if not bool(inside.all()):
            first = points[int((~inside).nonzero()[0])]
            raise ArgumentError(
                f"{int((~inside).sum())} of {len(points)} points lie outside the box of the energy, where its density "
                f"is zero; the first is {first.tolist()[:8]}. Clamp them, or widen the box."
            )
        return points

    def draw_evenly(self, count: int, generator: torch.Generator | None = None) -> Float64[Tensor, "n d"]:
        """Points drawn evenly from the box, where chains may start.

        Args:
            count: Number of points.
            generator: Source of random numbers, on the CPU; None: torch's own.
        """
        if as_whole(count, "count") < 1:
            raise ArgumentError(f"At least one point is drawn, got count={count}.")
        shares = torch.rand(count, self.dim, generator=generator, dtype=torch.float64).to(self.low.device)
        return torch.clamp(self.low + shares * (self.high - self.low), self.low, self.high)

    def log_ratio(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> Readings:
        """log p(x) - log p(y) for pairs of points of the box. Guarantee: |value - true| <= error. Z is not needed."""
        self._require_pairs(x, y)
        at_x, at_y = (self.field.measure(points) for points in (x, y))
        value = at_y.value - at_x.value
        return Readings(value, round_up(at_x.error + at_y.error + UNIT * value.abs(), 8))

    def log_ratio_bound(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """K |x - y|, rounded up: no two points of the box have a larger |log p(x) - log p(y)|. Nothing is evaluated."""
        a, b = self._require_pairs(x, y)
        return round_up(constant_of(self.field) * vector_norms(a - b, 2.0), 8)

    def union(self, other: "Energy", log_weights: tuple[float, float] = (0.0, 0.0)) -> "Energy":
        """The mixture p of densities: E = -log(w exp(-E_1) + v exp(-E_2)), of constant max(K_1, K_2).

        The shares of the mixture are as w Z_1 to v Z_2: for shares s and 1 - s give log s - log Z_1 and
        log(1 - s) - log Z_2 (`log_partition` encloses them). Guarantee: UPPER, if both constants certify: the gradient
        of E is a mean of the two gradients. Reference: Du, Li, Mordatch 2020.

        Args:
            other: An energy on the same box.
            log_weights: log w and log v.
        """
        if not all(math.isfinite(one) for one in log_weights):
            raise ArgumentError(f"The logarithms of weights are finite numbers, got {log_weights}.")
        # Energies are low where points are likely, so a mixture is an intersection of energies, of width 1.
        a, b = (Offset(one.field, -w) for one, w in zip((self, other), log_weights, strict=True))
        return self._combined(other, SmoothIntersection(a, b, 1.0, ExponentialBlend()))

    def intersection(self, other: "Energy") -> "Energy":
        """The product of densities: E = E_1 + E_2, likely where both are, of constant K_1 + K_2 (UPPER)."""
        return self._combined(other, SignedSum(self.field, other.field, 1.0))

    def difference(self, other: "Energy") -> "Energy":
        """The quotient of densities: E = E_1 - E_2, likely where this is and the other is not, constant K_1 + K_2."""
        return self._combined(other, SignedSum(self.field, other.field, -1.0))

    def _combined(self, other: "Energy", field: Field) -> "Energy":
        if not (torch.equal(self.low, other.low) and torch.equal(self.high, other.high)):
            raise ArgumentError(
                f"Energies are combined on one box, got low={self.low.tolist()[:4]}, high={self.high.tolist()[:4]} and "
                f"low={other.low.tolist()[:4]}, high={other.high.tolist()[:4]}; make one of them anew on the other's "
                "box."
            )
        return Energy(field, self.low, self.high)

    def _require_pairs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.require_inside(x), self.require_inside(y)
        if len(a) != len(b):
            raise ShapeError(f"Points are compared in pairs, got {len(a)} and {len(b)}.")
        return a, b


def _ends(given: Float[Tensor, " d"] | float, name: str, dim: int) -> Float64[Tensor, " d"]:
    found = as_reals(given, name)
    if found.ndim == 0:
        found = found.expand(dim).clone()
    if found.shape != (dim,):
        raise ShapeError(f"{name} is a number or a vector of length {dim}, got shape {tuple(found.shape)}.")
    if not bool(torch.isfinite(found).all()):
        raise ArgumentError(
            f"An energy needs a bounded box, got {name}={found.tolist()[:8]}: over an unbounded domain the integral of "
            "exp(-E) need not be finite (E = |x_1| in the plane), so there would be no density. Give finite ends."
        )
    return found
