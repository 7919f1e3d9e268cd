"""Half the difference of two distances: a classifier of two sets of points with slope 1 between them."""

from typing import final

from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.rounding.slacks import ROUNDINGS_4
from lipkit.sdf.combined._base import Combined
from lipkit.sdf.exact.points import Points


@final
class NearestMargin(Combined):
    """The 1-nearest-neighbour classifier of two sets: f(x) = (d(x, B) - d(x, A)) / 2, positive where A is nearer.

    Its zero set is the decision boundary, and |f| is at most the distance to it, with equality on the segment between
    nearest points of the two sets.

    Guarantee: K = 1 (EXACT). Cost: that of two `Points`.
    Reference: Béthune 2024, chapter 4.
    """

    def __init__(self, positive: Float[Tensor, "a d"], negative: Float[Tensor, "b d"]) -> None:
        super().__init__(Points(positive), Points(negative))

    def _bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return (values[0] - values[1]) / 2

    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        del points
        return errors.sum(0) + values.abs().sum(0) * ROUNDINGS_4
