"""How often a closed surface goes around a point, exactly: signed crossings of the ray that goes up from it."""

from fractions import Fraction
from typing import Final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from lipkit.rounding.slacks import UNIT

# Determinants of differences carry at most 8 and 24 units of the sum of their absolute terms (Shewchuk proves 3 and 7);
# what underflows in their products is below the last number.
_PLANE: Final = 8 * UNIT
_SPACE: Final = 24 * UNIT
_UNDERFLOW: Final = 2.0**-1000


def crossings(points: Float64[Tensor, "k 3"], corners: Float64[Tensor, "k 3 3"]) -> Int64[Tensor, " k"]:
    """+1 where the upward ray from a point leaves through its triangle, seen counter-clockwise from above; -1 where it
    enters; 0 where it misses it.

    Points are moved sideways by an infinitely small (t, t^2), so that no ray meets an edge. For a closed surface the
    sum over its triangles is the winding number of every point that is not on it.

    Guarantee: exact. Signs of determinants that float64 cannot decide are computed with fractions.
    """
    a, b, c = corners.unbind(1)
    sign = _side(points, a, b)
    sign = torch.where(sign == _side(points, b, c), sign, 0)
    sign = torch.where(sign == _side(points, c, a), sign, 0)
    # Below all corners is below the triangle; above all of them is not.
    above = (points[:, 2] < corners[:, :, 2].amin(1)).long()
    unclear = (sign != 0) & (above == 0) & (points[:, 2] <= corners[:, :, 2].amax(1))
    (rows,) = unclear.nonzero(as_tuple=True)
    above[rows] = (_volume_sign(points[rows], corners[rows]) == sign[rows]).long()
    return sign * above


def _side(q: Tensor, a: Tensor, b: Tensor) -> Int64[Tensor, " k"]:
    """On which side of the line from a to b a point lies, seen from above: +1 left, -1 right; 0 if a is above b."""
    factors = (a[:, 0] - q[:, 0], b[:, 1] - q[:, 1], a[:, 1] - q[:, 1], b[:, 0] - q[:, 0])
    left, right = factors[0] * factors[1], factors[2] * factors[3]
    found = left - right
    sign = found.sign().long()
    (rows,) = (found.abs() <= _PLANE * (left.abs() + right.abs()) + _UNDERFLOW).nonzero(as_tuple=True)
    if len(rows) == 0:
        return sign
    q, a, b = q[rows], a[rows], b[rows]
    x, y, z, w = (factor[rows] for factor in factors)
    # Grids and shapes of round numbers meet edges often, and need no fractions: nothing of theirs is rounded.
    whole = (
        _exact_difference(a, q).all(1) & _exact_difference(b, q).all(1) & _exact_product(x, y) & _exact_product(z, w)
    )
    # The derivatives in the direction of the move decide a tie, the one in t first.
    tied = torch.where(a[:, 1] != b[:, 1], a[:, 1] - b[:, 1], b[:, 0] - a[:, 0])
    sign[rows] = torch.where(found[rows] != 0, found[rows], tied).sign().long()
    for row in (~whole).nonzero()[:, 0].tolist():
        sign[rows[row]] = _exact_side(q[row].tolist(), a[row].tolist(), b[row].tolist())
    return sign


def _exact_difference(a: Tensor, q: Tensor) -> Tensor:
    """Whether a - q is not rounded in the first two coordinates (Knuth's sum)."""
    a, q = a[:, :2], q[:, :2]
    found = a - q
    lost = a - found
    return (a - (found + lost)) + (lost - q) == 0


def _exact_product(x: Tensor, y: Tensor) -> Bool[Tensor, " k"]:
    """Whether x y is not rounded (Dekker's product, which needs that nothing underflows)."""
    found = x * y
    (high, low), (top, rest) = _halves(x), _halves(y)
    error = low * rest - (((found - high * top) - low * top) - high * rest)
    return (x == 0) | (y == 0) | ((error == 0) & (found.abs() > _UNDERFLOW / UNIT**3))


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """A number as the sum of two of 26 binary digits each."""
    scaled = (2.0**27 + 1) * x
    high = scaled - (scaled - x)
    return high, x - high


def _exact_side(q: list[float], a: list[float], b: list[float]) -> int:
    qx, qy, ax, ay, bx, by = (Fraction(number) for number in (*q[:2], *a[:2], *b[:2]))
    terms = ((ax - qx) * (by - qy) - (ay - qy) * (bx - qx), ay - by, bx - ax)
    return next(((term > 0) - (term < 0) for term in terms if term != 0), 0)


def _volume_sign(q: Tensor, corners: Tensor) -> Int64[Tensor, " k"]:
    """The sign of the determinant of the corners minus q: +1 if q lies below a triangle that is counter-clockwise."""
    a, b, c = (corners - q[:, None]).unbind(1)
    terms = torch.stack(
        [a[:, i] * b[:, j] * c[:, k] for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0))]
    )
    found = terms[:3].sum(0) - terms[3:].sum(0)
    sign = found.sign().long()
    (rows,) = (found.abs() <= _SPACE * terms.abs().sum(0) + _UNDERFLOW).nonzero(as_tuple=True)
    for row in rows.tolist():
        sign[row] = _exact_volume_sign(q[row].tolist(), corners[row].tolist())
    return sign


def _exact_volume_sign(q: list[float], corners: list[list[float]]) -> int:
    (ax, ay, az), (bx, by, bz), (cx, cy, cz) = (
        [Fraction(x) - Fraction(y) for x, y in zip(corner, q, strict=True)] for corner in corners
    )
    volume = ax * (by * cz - bz * cy) + ay * (bz * cx - bx * cz) + az * (bx * cy - by * cx)
    return (volume > 0) - (volume < 0)
