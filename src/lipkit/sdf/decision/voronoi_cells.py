"""How far a point is from the cell of another point: the nearest point of a polyhedron, proven from both sides."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import NotProvenError
from lipkit.rounding.float64 import gamma
from lipkit.sdf.exact.lengths import lengths


@final
@dataclass(frozen=True, eq=False)
class Reach:
    """The distance to a cell lies within `least` and `most`; `normal` is the unit vector that leads away from it."""

    least: float
    most: float
    normal: Float64[Tensor, " d"]


def reach(x: Float64[Tensor, " d"], own: Float64[Tensor, "s d"], other: Float64[Tensor, " d"]) -> Reach:
    """The distance from x to {z : |z - t| <= |z - s| for all s}, for t = `other` and all s in `own`.

    With w = z - x the cell is (s - t)'w <= r_s, r_s = (|s - x|^2 - |t - x|^2) / 2. Its point nearest to w = 0 comes
    from a least-squares problem with weights u >= 0. Neither is trusted. The cell lies in the half-space of the
    weighted sum of its bisectors, so the weights prove |w| >= -u'r / |sum u (s - t)|. The point, moved towards t until
    every bisector lets it through, proves a distance from above; at t the slack of a bisector is |s - t|^2 / 2.

    Cost: one problem with as many unknowns as there are points s.
    Reference: Lawson and Hanson 1974, chapter 23 (least distance).
    """
    apart, near, far = own - other, own - x, other - x
    right = (near.square().sum(1) - far.square().sum()) / 2
    rounding = gamma(2 * own.shape[1] + 32)
    off = rounding * (near.square().sum(1) + far.square().sum())
    point, weights = _least_distance(apart, right)
    normal = weights @ apart
    size = float(lengths(normal)) + rounding * (len(own) + 2) * float(weights @ lengths(apart))
    total = -float(weights @ right) - float(weights @ off) - gamma(len(own) + 8) * float(weights @ right.abs())
    least = max(0.0, total / size * (1 - rounding)) if size > 0 else 0.0
    beyond = apart @ point - right + off + rounding * lengths(apart) * lengths(point)
    beyond = beyond.clamp(min=0)
    share = float((beyond / (beyond + lengths(apart).square() / 2 * (1 - rounding))).max()) * (1 + rounding)
    most = (float(lengths(point)) + share * float(lengths(far - point))) * (1 + rounding)
    # The point t itself belongs to its cell.
    most = min(most, float(lengths(far)) * (1 + rounding)) if math.isfinite(most) else float(lengths(far))
    return Reach(least, most, normal / lengths(normal).clamp(min=1e-300))


def _least_distance(rows: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The shortest w with rows w <= right, and weights >= 0 of the rows that prove it, both as far as rounding lets."""
    # Here, because it takes longer to load than all of lipkit.
    from scipy.optimize import nnls

    units = lengths(rows)
    scale = float((right.abs() / units).max()) or 1.0
    matrix = torch.cat([-rows.mT, -right[None] / scale]) / units
    target = torch.zeros(len(matrix), dtype=torch.float64)
    target[-1] = 1.0
    try:
        found, _ = nnls(matrix.numpy(), target.numpy(), maxiter=10 * sum(matrix.shape) + 100)
    except RuntimeError as error:
        raise NotProvenError(
            f"The nearest point of a cell was not found ({error}); use NearestMargin instead."
        ) from error
    weights = torch.from_numpy(found)
    residual = matrix @ weights - target
    last = float(residual[-1])
    point = -residual[:-1] / last * scale if last else torch.zeros_like(residual[:-1])
    return point, weights / units
