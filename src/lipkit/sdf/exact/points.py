"""The distance to the nearest of many points: nearest neighbours as a field."""

from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.rounding.float64 import gamma
from lipkit.sdf._base import Field, Readings, check_points
from lipkit.sdf.exact.lengths import lengths
from lipkit.sdf.exact.nearest import Neighbors, Products, Search
from lipkit.sdf.exact.nearest_tree import Tree
from lipkit.sdf.given_numbers import as_whole

# Up to this dimension a tree is faster than products with all points.
_FEW: Final = 8


@final
class Points(Field):
    """Minus the distance to the k-th nearest of n points, or minus the mean of the distances to the k nearest ones.

        f(x) = -d_k(x), with `mean` f(x) = -(d_1(x) + ... + d_k(x)) / k

    Both are 1-Lipschitz, so a nearest-neighbour score is certified for free; the mean of SQUARED distances has no
    constant. A point counts itself: the k-th neighbour of one of the points among the others is the (k + 1)-th here.

    Guarantee: K = 1, and the k-th distance within the error of `measure`, also where rounding cannot tell candidates
    apart. For k = 1 the exact signed distance of a set without inside.
    Cost: n d multiplications a point in blocks of 16 MB; a tree in at most 8 dimensions. Computed where the points are.
    """

    def __init__(self, points: Float[Tensor, "n d"], neighbors: int = 1, mean: bool = False) -> None:
        self._points: Float64[Tensor, "n d"] = check_cloud(points, "points")
        if not 1 <= as_whole(neighbors, "neighbors") <= len(self._points):
            raise ArgumentError(f"Between 1 and {len(self._points)} neighbors are among the points, got {neighbors}.")
        self.neighbors: int = neighbors
        self.mean: bool = mean

    @property
    def points(self) -> Float64[Tensor, "n d"]:
        """A copy of the points; what is searched was built from them once."""
        return self._points.clone()

    @property
    def dim(self) -> int:
        return self._points.shape[1]

    @property
    def bound(self) -> Bound:
        # Far out all neighbours lie in one direction, where the slope comes as near to 1 as one likes.
        return Bound.from_value(1.0, Kind.EXACT, self)

    @cached_property
    def _search(self) -> Search:
        few = self.dim <= _FEW and self._points.device.type == "cpu"
        return Tree(self._points) if few else Products(self._points)

    def nearest(self, x: Float[Tensor, "n d"]) -> Neighbors:
        """The nearest points themselves: their indices and distances, ascending, with the errors of the distances."""
        return self._nearest(check_points(x, self.dim))

    def _nearest(self, points: Tensor) -> Neighbors:
        with torch.no_grad():
            return self._search(points.detach().to(self._points.device), self.neighbors)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        found = self._nearest(points)
        if not (torch.is_grad_enabled() and points.requires_grad):
            return self._score(found.distance).to(points.device)
        here = points.to(self._points.device)
        index = found.index if self.mean else found.index[:, -1:]
        return self._score(lengths(here[:, None] - self._points[index])).to(points.device)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del values
        return self._measure(points).error

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        found = self._nearest(points)
        value = self._score(found.distance)
        error = found.error[:, -1]
        if self.mean:
            error = (found.error.mean(1) + value.abs() * gamma(self.neighbors + 4)) * (1 + gamma(self.neighbors + 4))
        return Readings(value.to(points.device), error.to(points.device))

    def _score(self, distance: Tensor) -> Tensor:
        return -distance.mean(1) if self.mean else -distance[:, -1]


def check_cloud(points: Float[Tensor, "n d"], name: str) -> Float64[Tensor, "n d"]:
    """At least one point with finite coordinates, copied, in float64."""
    if not isinstance(points, Tensor) or points.ndim != 2 or 0 in points.shape:
        shape = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise ShapeError(f"{name} have shape (n, d) with at least one point and one coordinate, got {shape}.")
    return check_points(points, points.shape[1]).detach().clone()
