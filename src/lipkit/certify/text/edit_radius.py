"""The number of edits that provably do not change the class of a text."""

import math

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lipkit.certify.text.edit_constants import EditConstants, Pool
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.slacks import ROUNDINGS_8192

_DOWN = 1 - ROUNDINGS_8192
# Stands for "any number of edits".
UNLIMITED = torch.iinfo(torch.int64).max


def edit_radius(
    logits: Float[Tensor, "n classes"],
    labels: Int[Tensor, " n"],
    constants: EditConstants,
    *,
    positions: Int[Tensor, " n"] | None = None,
    error: float = 0.0,
) -> Int[Tensor, " n"]:
    """The number of edits that provably do not change the class of each text; -1 where it is not its label.

        sums    the largest integer r with r K_yj < z_y - z_j - 2 error for all j != y,
        means   the largest r with K_yj (1/N + 1/(N-1) + ... + 1/(N-r+1)) < z_y - z_j - 2 error,

    N being the `positions` of the text (`EditClassifier.positions(lengths)`, for means only): r edits leave at
    least N - r, and an edit costs K/max(N, N'). `error` is how far a logit may be from its real value. A constant of 0
    gives `UNLIMITED`.

    Guarantee: LOWER, rounded down; a tie is no win, so it gives -1. Cost: a table of n x classes.
    """
    _check(logits, labels, constants, positions, error)
    z = logits.detach().to(torch.float64)
    own = labels.long()[:, None]
    gaps = ((z.gather(1, own) - z) * _DOWN - 2 * error).scatter(1, own, math.inf)
    pairs = constants.pairs.detach().to(z.device)[labels.long()]
    units = gaps / pairs.clamp(min=1e-300) * _DOWN
    # Beyond the exact integers of float64 only a constant of zero is without limit.
    units = torch.where(pairs > 0, units.clamp(max=2.0**53), math.inf).scatter(1, own, math.inf).amin(1)
    steps = (units.ceil() - 1).clamp(max=2.0**53).long() if positions is None else _harmonic(units, positions)
    steps = torch.where(units == math.inf, UNLIMITED, steps)
    return torch.where(gaps.amin(1) > 0, steps.clamp(min=0), -1)


def _harmonic(units: Float64[Tensor, " n"], positions: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The largest r with sum over k < r of 1/max(N - k, 1) < units."""
    found: list[int] = []
    for unit, place in zip(units.tolist(), positions.tolist(), strict=True):
        spent, steps, left = 0.0, 0, place
        while left > 1 and (spent + 1 / left) * (2 - _DOWN) < unit:
            spent, steps, left = spent + 1 / left, steps + 1, left - 1
        if left <= 1:
            steps += max(0, math.ceil(min(unit - spent * (2 - _DOWN), 2.0**53)) - 1)
        found.append(steps)
    return torch.tensor(found, dtype=torch.int64, device=units.device)


def _check(logits: Tensor, labels: Tensor, constants: EditConstants, positions: Tensor | None, error: float) -> None:
    classes = constants.heads.shape[0]
    if logits.ndim != 2:
        raise ShapeError(f"Logits have shape (texts, classes), got {tuple(logits.shape)}.")
    if labels.shape != logits.shape[:1]:
        raise ShapeError(f"One label for each row of logits is needed, got {len(labels)} for {len(logits)}.")
    if logits.shape[1] != classes or classes < 2:
        raise ShapeError(f"The constants are for {classes} classes (two or more), got logits of {logits.shape[1]}.")
    if not bool(torch.isfinite(logits).all()):
        raise NonFiniteError("Some logits are NaN or infinite, and nothing can be said of them; check the model.")
    if not (math.isfinite(error) and error >= 0):
        raise ArgumentError(f"`error` is a finite number >= 0, got {error}.")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise ArgumentError(f"Labels must lie in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}.")
    if (positions is None) != (constants.pool is Pool.SUM):
        raise ArgumentError(f"`positions` are needed for means and for nothing else; this is a {constants.pool.value}.")
    if positions is not None and len(positions) and int(positions.min()) < 1:
        raise ArgumentError(f"A mean is over one position or more, got {int(positions.min())}.")
