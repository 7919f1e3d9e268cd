"""Radii of balls that no surface enters."""

import math
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.sdf._base import Field, constant_of
from lipkit.sdf.meshes.deviation import Deviation
from lipkit.sdf.rays.free_radius import free_radius


@runtime_checkable
class ProvenDeviation(Protocol):
    """How far a field is from zero on a surface: |f| <= upper there, proven.

    What `sdf.deviation` returns knows its field, and is refused for another one. Any other object with this number is
    believed: somebody states it for the field that it is given with.
    """

    @property
    def upper(self) -> float:
        """A number that |f| exceeds nowhere on the surface."""
        ...


def clearance(f: Field, x: Float[Tensor, "n d"], deviation: ProvenDeviation | None = None) -> Float64[Tensor, " n"]:
    """Radii r(x) of open balls around n points that are free of the zero set of f, or of a surface.

        r = (|f(x)| - error)/K,   r = (|f(x)| - error - sup |f| over the surface)/K,   0 if negative.

    Without a deviation the statement is about the zeros of f, not about the data or the surface that f was made from.

    Guarantee: a lower bound of the distance, rounded down; with a deviation, that to the surface it was proven on. A
    deviation of another field is refused. Cost: one value a point, and a hash of both fields if they are networks.
    """
    constant, upper = constant_of(f), upper_of(deviation, f)
    found = f.measure(x)
    return free_radius(found.value.abs(), (found.error + upper) * (1 + ROUNDINGS_8), constant)


def upper_of(deviation: ProvenDeviation | None, f: Field) -> float:
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
    if isinstance(deviation, Deviation) and deviation.of is not None and not f.is_known_to_equal(deviation.of):
        raise ArgumentError(
            f"This deviation was proven for another field, a {type(deviation.of).__name__}, and says nothing of this "
            f"{type(f).__name__}; call `sdf.deviation` with the field itself."
        )
    return float(deviation.upper)
