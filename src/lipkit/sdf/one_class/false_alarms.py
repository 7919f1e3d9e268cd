"""Thresholds of scores that keep a rate of false alarms, from scores of rows that were held out."""

from fractions import Fraction

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def rows_needed(share: float) -> int:
    """The least number n of held-out rows from which `threshold` can promise a share: share (n + 1) >= 1."""
    exact = _check_share(share)
    return -(-exact.denominator // exact.numerator) - 1


def threshold(scores: Float[Tensor, " n"], share: float) -> Float64[Tensor, ""]:
    """The k-th smallest of n scores, k = floor(share (n + 1)): flag what scores below it.

    Guarantee: if a further score is exchangeable with these n (none of their rows was trained on), it is below the
    threshold with probability at most k/(n + 1) <= share, for every distribution, ties included. An interpolated
    percentile has no such guarantee. For scores with constant K a threshold lower by K eps keeps the share against
    every move of length eps.
    Cost: a sort. Reference: classical (order statistics, conformal prediction).

    Args:
        scores: Of the held-out rows; normal rows score high.
        share: Largest probability that a normal row is flagged, in (0, 1); read as the decimal number that it prints.
    """
    exact = _check_share(share)
    if scores.ndim != 1:
        raise ShapeError(f"Scores are one number for each row, got shape {tuple(scores.shape)}.")
    if not bool(torch.isfinite(scores).all()):
        raise NonFiniteError("Some scores are NaN or infinite; check the model and its rows.")
    if len(scores) < rows_needed(share):
        raise ArgumentError(
            f"A share of {share:g} false alarms needs {said_rows(rows_needed(share))} held-out rows or more, got "
            f"{len(scores)}; hold out more rows, or allow a larger share."
        )
    rank = int(exact * (len(scores) + 1))
    return scores.detach().to(torch.float64).sort().values[rank - 1]


def said_rows(count: int) -> str:
    """A number of rows in words; of more than any table has, a power of ten."""
    return str(count) if count < 10**15 else f"more than 10^{len(str(count)) - 1}"


def _check_share(share: float) -> Fraction:
    if not 0 < share < 1:
        raise ArgumentError(f"A share of false alarms lies in (0, 1), got {share}.")
    return Fraction(repr(float(share)))
