"""Regions of the plane bounded by polygons, their exact signed distance, and the Koch snowflake."""

import math
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from lipkit._seeds import generator
from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

# Points times edges at once: 1 MB for each intermediate, which stays in the cache.
_AT_ONCE: Final = 2**17


@final
@dataclass(frozen=True, eq=False)
class Outline:
    """The region between closed polygons: inside is where a ray crosses their edges an odd number of times.

    One polygon bounds its interior; two, one inside the other, bound a ring. Each is given by its corners in order,
    the last joined to the first. They must not touch each other or themselves.
    """

    polygons: tuple[Float64[Tensor, "corners 2"], ...]

    def __post_init__(self) -> None:
        if not self.polygons or min(len(corners) for corners in self.polygons) < 3:
            raise ShapeError(f"A polygon has at least 3 corners, got {[len(corners) for corners in self.polygons]}.")
        if not all(bool(corners.isfinite().all()) for corners in self.polygons):
            raise NonFiniteError("Some corners are NaN or infinite; an outline needs finite ones.")
        starts, ends = self.edges()
        squares = (ends - starts).square().sum(1)
        if not bool((squares.isfinite() & (squares > torch.finfo(torch.float64).tiny)).all()):
            raise ArgumentError(
                f"The square of the length of every edge must be a normal number, got {float(squares.min())} to "
                f"{float(squares.max())}; leave out repeated corners, or change the scale."
            )

    def edges(self) -> tuple[Float64[Tensor, "edges 2"], Float64[Tensor, "edges 2"]]:
        """(where each edge starts, where it ends)."""
        starts = torch.cat(self.polygons)
        ends = torch.cat([corners.roll(-1, 0) for corners in self.polygons])
        return starts, ends

    def contains(self, points: Float64[Tensor, "count 2"]) -> Bool[Tensor, " count"]:
        """Whether each point is inside, by the parity of crossings; on an edge, rounding decides."""
        return torch.cat([self._inside(part) for part in self._parts(points)])

    def signed_distance(self, points: Float64[Tensor, "count 2"]) -> Float64[Tensor, " count"]:
        """Distance to the boundary, positive inside and negative outside: 1-Lipschitz, with slope 1 almost everywhere.

        The minimum over edges [a, b] of |p - a - t (b - a)|, t = <p - a, b - a> / |b - a|^2 clamped to [0, 1]; exact up
        to a few roundings of float64. Cost: points x edges.
        """
        return torch.cat([self._signed(part) for part in self._parts(points)])

    def draw(self, count: int, half_width: float, seed: int) -> Examples:
        """Points drawn evenly from the square [-w, w]^2, class 0 `outside` and class 1 `inside` the region."""
        if count < 1 or not 0 < half_width < math.inf:
            raise ArgumentError(
                f"At least 1 point from a square of positive size is drawn, got count={count}, half_width={half_width}."
            )
        random = generator(seed)
        shares = torch.rand(count, 2, generator=random, dtype=torch.float64)
        # Rounded first, so that the class is that of the point as it is stored.
        points = ((2 * shares - 1) * half_width).float()
        return Examples(points, self.contains(points.double()).long(), ("outside", "inside"), "points of a square")

    def _parts(self, points: Float64[Tensor, "count 2"]) -> tuple[Tensor, ...]:
        return points.split(max(1, _AT_ONCE // sum(len(corners) for corners in self.polygons)))

    def _inside(self, points: Float64[Tensor, "count 2"]) -> Bool[Tensor, " count"]:
        starts, ends = self.edges()
        x, y = (points[:, axis, None] for axis in (0, 1))
        along, upward = ends - starts, ends[:, 1] > starts[:, 1]
        # One end counts as below when at the same height, so a ray through a corner crosses once or not at all.
        straddles = (starts[:, 1] > y) != (ends[:, 1] > y)
        left = along[:, 0] * (y - starts[:, 1]) - along[:, 1] * (x - starts[:, 0]) > 0
        return (straddles & (left == upward)).sum(1) % 2 == 1

    def _signed(self, points: Float64[Tensor, "count 2"]) -> Float64[Tensor, " count"]:
        starts, ends = self.edges()
        along = ends - starts
        # Axis by axis: a trailing axis of length 2 costs several times as much.
        across, up = along.unbind(1)
        x, y = (points[:, axis, None] - starts[:, axis] for axis in (0, 1))
        share = ((x * across + y * up) / along.square().sum(1)).clamp(0, 1)
        squares = (x - share * across).square() + (y - share * up).square()
        distance = squares.amin(1).sqrt()
        return torch.where(self._inside(points), distance, -distance)


def snowflake(side: float = 1.0, iterations: int = 4) -> Outline:
    """Koch's snowflake around the origin, after some iterations from an equilateral triangle with one corner on top.

    Each iteration replaces every edge by four of a third of its length, the middle two around a triangle outwards:
    3 4^n edges, length 3 side (4/3)^n, area (sqrt(3)/4) side^2 (1 + 3/5 (1 - (4/9)^n)). It reaches side / sqrt(3) from
    the origin, and from n = 1 on keeps side / 3 away from it.
    Reference: von Koch, 1904.

    Args:
        side: Side of the first triangle.
        iterations: How often every edge is replaced by four, 0 to 10.
    """
    if not 0 < side < math.inf:
        raise ArgumentError(f"The side of the triangle is positive and finite, got {side}.")
    if not 0 <= iterations <= 10:
        raise ArgumentError(f"Between 0 and 10 iterations are drawn (10 have 3 million edges), got {iterations}.")
    angles = math.pi * torch.tensor([1 / 2, 7 / 6, 11 / 6], dtype=torch.float64)
    corners = side / math.sqrt(3) * torch.stack([angles.cos(), angles.sin()], 1)
    for _ in range(iterations):
        ends = corners.roll(-1, 0)
        along = ends - corners
        # The corners go round counterclockwise, so outwards is to the right of an edge.
        outwards = torch.stack([along[:, 1], -along[:, 0]], 1)
        peak = corners + along / 2 + math.sqrt(3) / 6 * outwards
        corners = torch.stack([corners, corners + along / 3, peak, corners + 2 * along / 3], 1).reshape(-1, 2)
    return Outline((corners,))


def snowflake_ring(outer: float = 348.0, inner: float = 180.0, iterations: int = 4) -> Outline:
    """The region between two snowflakes around the origin, given by the sides of their triangles.

    Without arguments it fits the square [-200, 200]^2 up to one unit at its tips: the sides are .87 and .45 of its
    width, as in the experiment of Béthune et al., Pay attention to your loss, NeurIPS 2022.

    Args:
        outer: Side of the first triangle of the outer snowflake.
        inner: The same of the inner one.
        iterations: How often every edge is replaced by four.
    """
    if not 0 < inner < outer / math.sqrt(3):
        raise ArgumentError(
            f"The inner snowflake must lie inside the outer one: a side below {outer / math.sqrt(3):.6g} "
            f"(outer / sqrt(3)) is needed, got {inner}."
        )
    return Outline((*snowflake(outer, iterations).polygons, *snowflake(inner, iterations).polygons))
