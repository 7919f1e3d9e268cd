"""The signed distance to the decision boundary of the 1-nearest-neighbour classifier of two sets of points."""

import math
from typing import Final, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.slacks import ROUNDINGS_64
from lipkit.sdf._base import Field, Readings
from lipkit.sdf.decision.voronoi_cells import Reach, reach
from lipkit.sdf.exact.lengths import lengths
from lipkit.sdf.exact.points import Points, check_cloud

# Squares of shorter lengths, and their roundings, may be no normal numbers, which no bound here counts.
_LEAST: Final = 2.0**-400
# The first bound of the distance to a cell uses the bisectors of this many points nearest to the query.
_NEARBY: Final = 8


@final
class NearestBoundary(Field):
    """The distance to the points as near to A as to B, positive where A is nearer: |f(x)| is the exact radius.

    For x nearer to A it is the smallest distance to a cell {z : |z - b| <= |z - a| for all a}, a polyhedron bounded by
    bisectors. Cells are visited in the order of a lower bound until none of the others can be nearer.

    Guarantee: the exact signed distance, K = 1, within the proven error of `measure`: the true distance is enclosed by
    a half-space that contains the cell and a point that lies in it.
    Cost: for each query a few least-squares problems with as many unknowns as points; about a millisecond each for a
    thousand points in the plane. For large sets `NearestMargin` is a lower bound of |f|.
    Reference: Béthune 2024, Definition 8; the computation is ours.
    """

    def __init__(self, positive: Float[Tensor, "a d"], negative: Float[Tensor, "b d"]) -> None:
        self.positive: Float64[Tensor, "a d"] = check_cloud(positive, "points").cpu()
        self.negative: Float64[Tensor, "b d"] = check_cloud(negative, "points").cpu()
        if self.positive.shape[1] != self.negative.shape[1]:
            raise ShapeError(
                f"Two sets lie in one space, got dimensions {self.positive.shape[1]} and {self.negative.shape[1]}."
            )
        self._fields = (Points(self.positive), Points(self.negative))
        apart = float(self._fields[0].nearest(self.negative).distance.min())
        if not apart > _LEAST:
            raise ArgumentError(
                f"Some points of the two sets are {apart:.3g} apart, so there is no boundary between them, or none "
                "that squares of float64 resolve; remove points that are in both sets, or scale the data."
            )

    @property
    def dim(self) -> int:
        return self.positive.shape[1]

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, self)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        with torch.no_grad():
            value, _, normal = self._solve(points.detach())
        # Near x the field is the distance to one half-space: the gradient is its normal.
        return value + (normal * (points - points.detach())).sum(1)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del values
        return self._measure(points).error

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        value, error, _ = self._solve(points)
        return Readings(value, error)

    def _solve(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = points.cpu()
        a, b = (field._nearest(at) for field in self._fields)
        lead = b.distance[:, 0] - a.distance[:, 0]
        doubt = b.error[:, 0] + a.error[:, 0]
        if not bool(torch.isfinite((a.distance + b.distance).square()).all()):
            raise NonFiniteError("Some points are too far out for the squares of their distances; scale the data.")
        value, error, normal = torch.zeros_like(lead), torch.zeros_like(lead), torch.zeros_like(at)
        for i, x in enumerate(at):
            sign = 1.0 if float(lead[i]) > 0 else -1.0
            own, other = (self.positive, self.negative) if sign > 0 else (self.negative, self.positive)
            found = _nearest_cell(x, own, other)
            value[i], normal[i] = sign * found.least, sign * found.normal
            error[i] = (found.most - found.least) * (1 + ROUNDINGS_64)
            if not abs(float(lead[i])) > float(doubt[i]):
                # Rounding hides the side, so the distance to either is all that is known.
                back = _nearest_cell(x, other, own)
                error[i] = 2 * max(found.most, back.most)
        return value.to(points.device), error.to(points.device), normal.to(points.device)


def _nearest_cell(x: Tensor, own: Tensor, other: Tensor) -> Reach:
    """The distance to the nearest cell, `most - least` wide, with the normal of the cell found."""
    near = lengths(own - x)
    close = own[near.topk(min(_NEARBY, len(own)), largest=False).indices]
    far = lengths(other - x)
    # A bisector is a wall: its distance is (|t - x|^2 - |s - x|^2) / (2 |s - t|).
    gaps = far.square()[:, None] - lengths(close - x).square()
    sizes = (far.square()[:, None] + lengths(close - x).square()) * ROUNDINGS_64 * (1 + own.shape[1])
    walls = ((gaps - sizes) / (2 * torch.cdist(other, close, compute_mode="donot_use_mm_for_euclid_dist"))).amax(1)
    walls = walls.clamp(min=0) * (1 - ROUNDINGS_64 * (1 + own.shape[1]))
    best, least = Reach(0.0, math.inf, torch.zeros_like(x)), math.inf
    for wall, at in zip(*(part.tolist() for part in walls.sort()), strict=True):
        if wall >= best.most:
            break
        found = reach(x, own, other[at])
        least = min(least, found.least)
        if found.most < best.most:
            best = found
    # What was left out is no nearer than what was found.
    return Reach(min(least, best.most), best.most, best.normal)
