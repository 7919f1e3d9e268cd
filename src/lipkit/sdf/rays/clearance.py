"""Radii of balls that no surface enters."""

import math
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.sdf._base import Field, constant_of
from lipkit.sdf.rays.free_radius import free_radius


@runtime_checkable
class ProvenDeviation(Protocol):
    """How far a field is from zero on a surface: |f| <= upper there, proven."""

    @property
    def upper(self) -> float:
        """A number that |f| exceeds nowhere on the surface."""
        ...


def clearance(f: Field, x: Float[Tensor, "n d"], deviation: ProvenDeviation | None = None) -> Float64[Tensor, " n"]:
    """Radii r(x) of open balls around n points that are free of the zero set of f, or of a surface.

        r = (|f(x)| - error)/K,   r = (|f(x)| - error - sup |f| over the surface)/K,   0 if negative.

    Without a deviation the statement is about the zeros of f, not about the data or the surface that f was made from.

    Guarantee: a lower bound of the distance, rounded down. Cost: one value a point.
    """
    found = f.measure(x)
    error = (found.error + upper_of(deviation)) * (1 + ROUNDINGS_8)
    return free_radius(found.value.abs(), error, constant_of(f))


def upper_of(deviation: ProvenDeviation | None) -> float:
    """The largest size of f on the surface; 0 for the zero set of f itself."""
    if deviation is None:
        return 0.0
    if not isinstance(deviation, ProvenDeviation):
        raise ArgumentError(
            f"A deviation is what `sdf.deviation(f, mesh, tolerance)` returns, which holds a proven bound `upper`; got "
            f"{deviation!r}."
        )
    if not 0 <= deviation.upper < math.inf:
        raise ArgumentError(f"A deviation has a finite upper bound >= 0, got {deviation.upper}.")
    return float(deviation.upper)
