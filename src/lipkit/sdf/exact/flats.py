"""The distance to a union of affine subspaces: local linear models of data as a field."""

import math
from typing import Final, Self, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from lipkit._seeds import check_seed
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.float64 import gamma, normalize
from lipkit.sdf._base import Field, Readings, check_points
from lipkit.sdf.exact.flat_fitting import fit_flats
from lipkit.sdf.exact.lengths import length_error, lengths, underflow
from lipkit.sdf.exact.points import check_cloud
from lipkit.sdf.given_numbers import as_reals, as_whole

# Entries of one block of products: 16 MB.
_ENTRIES: Final = 2**21
# Directions whose span is known no better than this depend on each other for all that float64 can tell.
_DEPENDENT = 2.0**-20
# What squares below the smallest normal number lose.
_TINY = 2.0**-1000


@final
class Flats(Field):
    """Minus the distance to a union of m affine subspaces: f(x) = -min_i |(I - B_i' B_i)(x - o_i)|.

    The rows of B_i are orthonormal; they span what was given up to rounding, and `measure` counts how far they do not.
    A row of zeros is a direction that is missing, so that flats of several dimensions can be mixed.

    Guarantee: K = 1, the exact signed distance of a set without inside. Cost: m q d multiplications a point.

    Args:
        origins: A point of each flat.
        bases: Directions of each flat, of any lengths, not orthogonal but independent.
    """

    def __init__(self, origins: Float[Tensor, "m d"], bases: Float[Tensor, "m q d"]) -> None:
        self._origins: Float64[Tensor, "m d"] = check_cloud(origins, "origins")
        given = as_reals(bases, "bases")
        m, d = self._origins.shape
        if given.ndim != 3 or (given.shape[0], given.shape[2]) != (m, d) or given.shape[1] >= d:
            raise ShapeError(
                f"{m} flats in dimension {d} have bases of shape ({m}, q, {d}) with q < {d}, got {tuple(given.shape)}."
            )
        if not bool(torch.isfinite(given).all()):
            raise NonFiniteError("Some directions of the flats are NaN or infinite; repair them first.")
        self._given: Float64[Tensor, "m q d"] = given.to(self._origins.device)
        self._bases: Float64[Tensor, "m q d"]
        self._bases, self._tilt = _orthonormal(self._given)
        self._center = self._origins.mean(0)
        shifted = self._origins - self._center
        self._reach = _reach(shifted, "flats")
        # Coordinates of all flats by one product: B_i (x - o_i) = B_i x - B_i o_i.
        self._rows = self._bases.flatten(0, 1)
        self._offsets = (self._bases @ shifted[:, :, None]).flatten()
        self._shifted = shifted

    @classmethod
    def fit(cls, points: Float[Tensor, "n d"], count: int, dim: int, rounds: int = 4, seed: int = 0) -> Self:
        """Flats of dimension `dim` near points: k-means, then in turns principal directions and the nearest flat.

        Every turn lowers the sum of squared distances, up to flats that lose all their points and begin anew.
        """
        cloud = check_cloud(points, "points")
        _reach(cloud - cloud.mean(0), "points")
        count, dim, rounds = as_whole(count, "count"), as_whole(dim, "dim"), as_whole(rounds, "rounds")
        if not 1 <= count <= len(cloud) or not 0 <= dim < cloud.shape[1] or rounds < 0:
            raise ArgumentError(
                f"{len(cloud)} points in dimension {cloud.shape[1]} give 1 to {len(cloud)} flats of dimension 0 to "
                f"{cloud.shape[1] - 1} in 0 rounds or more, got count={count}, dim={dim}, rounds={rounds}."
            )
        origins, bases = fit_flats(cloud, count, dim, rounds, check_seed(seed), lambda o, b: cls(o, b).nearest(cloud))
        return cls(origins, bases)

    @property
    def origins(self) -> Float64[Tensor, "m d"]:
        """A copy of the points, one of each flat."""
        return self._origins.clone()

    @property
    def given(self) -> Float64[Tensor, "m q d"]:
        """A copy of the directions as they were given, from which the same field can be made again."""
        return self._given.clone()

    @property
    def bases(self) -> Float64[Tensor, "m q d"]:
        """A copy of the orthonormal directions."""
        return self._bases.clone()

    @property
    def dim(self) -> int:
        return self._origins.shape[1]

    @property
    def bound(self) -> Bound:
        # No flat fills the space, so the distance to one has slope 1 somewhere.
        return Bound.from_value(1.0, Kind.EXACT, self)

    def nearest(self, x: Float[Tensor, "n d"]) -> Int64[Tensor, " n"]:
        """Which flat is the nearest one to each point."""
        with torch.no_grad():
            found, _ = self._search(check_points(x, self.dim).to(self._origins.device))
        return found

    def _search(self, points: Tensor) -> tuple[Tensor, Readings]:
        rows = max(1, _ENTRIES // (len(self._rows) + len(self._origins) + self.dim))
        found = [self._block(block) for block in points.detach().split(rows)]
        which, value, error = (torch.cat(part) for part in zip(*found, strict=True))
        return which, Readings(value, error)

    def _block(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shifted = points - self._center
        inside = (shifted @ self._rows.mT - self._offsets).view(len(points), *self._bases.shape[:2])
        squares = lengths(self._shifted).square() - 2 * (shifted @ self._shifted.mT) + shifted.square().sum(1)[:, None]
        squares = squares - inside.square().sum(2)
        # By Pythagoras, with errors relative to (|x| + reach)^2; whatever may be the smallest is computed again.
        size = (lengths(shifted) + self._reach).square()
        roundings = gamma(4 * self.dim + 64) * (2 + math.sqrt(self._bases.shape[1]))
        slack = (roundings + 4 * float(self._tilt.max())) * size + _TINY
        candidate = squares <= (squares.amin(1) + 2 * slack)[:, None]
        best, which = torch.full_like(size, torch.inf), squares.argmin(1)
        error = torch.zeros_like(size)
        for i in candidate.any(0).nonzero().flatten().tolist():
            rows = candidate[:, i].nonzero().flatten()
            distance, own = self._distance(points[rows], i)
            nearer = distance < best[rows]
            best[rows] = torch.where(nearer, distance, best[rows])
            which[rows] = torch.where(nearer, i, which[rows])
            error[rows] = torch.maximum(error[rows], own)
        return which, -best, error

    def _distance(self, points: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """The distance to one flat, and how far it may be off."""
        away = points - self._origins[i]
        distance = lengths(_residual(away, self._bases[i]))
        # Two products with rows of length one, each of which is off by its roundings times q^(1/2) at most.
        roundings = gamma(2 * self.dim + 32) * (2 + 2 * math.sqrt(self._bases.shape[1]))
        error = length_error(self.dim, distance) + (roundings + float(self._tilt[i])) * lengths(away) * 2
        return distance, error + underflow(self.dim)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        here = points.to(self._origins.device)
        with torch.no_grad():
            which, found = self._search(here)
        if not (torch.is_grad_enabled() and points.requires_grad):
            return found.value.to(points.device)
        used = which.unique().tolist()
        rows = [(which == i).nonzero().flatten() for i in used]
        parts = [
            lengths(_residual(here[r] - self._origins[i], self._bases[i])) for i, r in zip(used, rows, strict=True)
        ]
        order = torch.cat(rows).argsort() if rows else which
        return -torch.cat([*parts, lengths(here[:0])])[order].to(points.device)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del values
        return self._measure(points).error

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        _, found = self._search(points.to(self._origins.device))
        return Readings(found.value.to(points.device), found.error.to(points.device))


def _reach(shifted: Tensor, what: str) -> float:
    """How far out the farthest of these lies, if the square of it is finite."""
    found = float(lengths(shifted).max())
    if not found * found < math.inf:
        raise NonFiniteError(f"Some {what} are too far out for their squares; scale the data to less than 1e150.")
    return found


def _residual(away: Tensor, basis: Tensor) -> Tensor:
    return away - (away @ basis.mT) @ basis


def _orthonormal(given: Tensor) -> tuple[Tensor, Float64[Tensor, " m"]]:
    """Orthonormal rows with the spans of those given, and bounds of what the projections on both differ by."""
    # By powers of two first, so that no square leaves the range of float64.
    rows = normalize(given.flatten(0, 1), "A flat")[0].view_as(given) if given.numel() else given
    size = torch.linalg.vector_norm(rows, dim=2, keepdim=True)
    rows = rows / torch.where(size > 0, size, 1.0)
    bases, tilt = torch.zeros_like(rows), rows.new_zeros(len(rows))
    for i, (spanning, present) in enumerate(zip(rows, size[:, :, 0] > 0, strict=True)):
        count = int(present.sum())
        if count == 0:
            continue
        bases[i, :count], tilt[i] = _span(spanning[present])
        if not float(tilt[i]) <= _DEPENDENT:
            raise ArgumentError(
                f"The directions of flat {i} depend on each other, up to rounding; give independent ones."
            )
    return bases, tilt


def _span(rows: Tensor) -> tuple[Tensor, float]:
    """Orthonormal rows Q with the span of rows A of length one, and a bound of |Q'Q - P| for the projection P on it.

    Let A = LQ + R and D = QQ' - I. The projection on the rows of Q differs from Q'Q by |D| at most. A unit vector of
    the span of A is z'A = w'(Q + R'), w = L'z and R' = L^-1 R, so it lies within r / (1 - |D| - r) of that of Q,
    r = |R'|; spans of one dimension are as far from each other as their projections. |L^-1| <= |X| / (1 - |I - LX|).
    """
    count, dim = rows.shape
    basis = torch.linalg.qr(rows.mT).Q.mT
    # Entries of products of rows of length one are off by their roundings; the rows themselves were divided.
    rounding = gamma(2 * dim + 32) * (2 * count + 4)
    lower = rows @ basis.mT
    defect = _size(basis @ basis.mT - torch.eye(count).to(basis)) + rounding
    left = _size(rows - lower @ basis) + rounding
    inverse = torch.linalg.inv_ex(lower).inverse
    wrong = _size(torch.eye(count).to(basis) - lower @ inverse) + rounding * (1 + _size(inverse))
    apart = _size(inverse) * left / (1 - wrong) if wrong < 1 / 2 else math.inf
    return basis, 2 * (defect + apart / (1 - defect - apart)) if apart + defect < 1 / 2 else math.inf


def _size(matrix: Tensor) -> float:
    found = float(torch.linalg.matrix_norm(matrix))
    return found if math.isfinite(found) else math.inf
