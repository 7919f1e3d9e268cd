"""The trade between two scores: which models no other model beats in both."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError


def pareto_front(points: Float[Tensor, "n scores"]) -> Int[Tensor, " front"]:
    """Indices of the points that no other dominates, by falling first score.

    a dominates b if a >= b in both scores and a > b in one; larger is better. Equal points do not dominate each other:
    all copies stay. Cost: one sort, O(n log n).
    """
    first, second = _columns(points)
    order = np.lexsort((-second, -first))
    # Among equal first scores only the best second one can stay; against larger first ones it must be strictly better.
    a, b = first[order], second[order]
    group = np.concatenate([[0], np.cumsum(a[1:] != a[:-1])]) if len(a) else np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]])) if len(a) else np.zeros(0, np.int64)
    best = b[starts]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(best)[:-1]]) if len(best) else best
    stays = (b == best[group]) & (b > before[group])
    return torch.from_numpy(order[stays].copy()).to(points.device)


def hypervolume(points: Float[Tensor, "n scores"], reference: tuple[float, float] = (0.0, 0.0)) -> float:
    """Area of what some point dominates above the reference: one number for a whole front, larger is better.

    Points that are not above the reference in both scores add nothing. Cost: that of `pareto_front`.
    Reference: Zitzler, Thiele 1998.
    """
    if not all(np.isfinite(reference)):
        raise NonFiniteError(f"The reference must be finite, got {reference}.")
    front = points[pareto_front(points)].detach().to("cpu", torch.float64).numpy() - np.asarray(reference)
    front = front[(front > 0).all(1)]
    area, height = 0.0, 0.0
    for width, top in front:
        area += width * max(0.0, top - height)
        height = max(height, top)
    return area


def _columns(points: Tensor) -> tuple[np.ndarray, np.ndarray]:
    table = points.detach().to("cpu", torch.float64).numpy()
    if table.ndim != 2 or table.shape[1] != 2:
        raise ArgumentError(f"Points of a trade have two scores each, got shape {tuple(points.shape)}.")
    if not np.isfinite(table).all():
        raise NonFiniteError("Some scores are NaN or infinite, and nothing can be compared with them.")
    return table[:, 0], table[:, 1]
