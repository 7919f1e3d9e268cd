"""Absolute row and column sums over all slopes at once: what l_inf and l1 constants need."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds._uncertain import Uncertain
from lipkit.norms._rounding import gamma

_ULPS = 2.0**-49


def largest_row_sum(
    found: Uncertain, low: Float64[Tensor, "out in"], high: Float64[Tensor, "out in"]
) -> Float64[Tensor, ""]:
    """An upper bound of max_i sum_j |M_ij| over all slopes, from an interval [low, high] for each entry.

    |y| <= a y + b on [l, u], with a = +-1 where the sign is known. So the sum is at most sum_j b_ij + (M a_i)_i, and
        |(M - C) a| <= |G| s (I - |N| s)^-1 |P a|,
    where the entries of P a cancel, as those of P in a sum of absolute values do not. Our derivation.
    """
    a, b = _chords(low, high)
    exact = (a * found.c.mid).sum(1)
    size = a.abs() * (found.c.mid.abs() + found.c.width)
    p_a = (found.p.mid @ a.mT).abs() + found.p.width @ a.abs().mT
    p_a = p_a + gamma(a.shape[1] + 8) * (found.p.mid.abs() @ a.abs().mT)
    outer = (found.g.mid.abs() + found.g.width) * found.spread
    more = (outer * found.reached(p_a).mT).sum(1) + (a.abs() * found.c.width).sum(1)
    return _total(exact, size.sum(1), b.sum(1) + more, a.shape[1] + len(p_a))


def largest_column_sum(
    found: Uncertain, low: Float64[Tensor, "out in"], high: Float64[Tensor, "out in"]
) -> Float64[Tensor, ""]:
    """The same for max_j sum_i |M_ij|, where the entries of a'G cancel."""
    a, b = _chords(low, high)
    exact = (a * found.c.mid).sum(0)
    size = a.abs() * (found.c.mid.abs() + found.c.width)
    a_g = (a.mT @ found.g.mid).abs() + a.abs().mT @ found.g.width
    a_g = a_g + gamma(len(a) + 8) * (a.abs().mT @ found.g.mid.abs())
    inner = found.reached(found.p.mid.abs() + found.p.width)
    more = (a_g * found.spread * inner.mT).sum(1) + (a.abs() * found.c.width).sum(0)
    return _total(exact, size.sum(0), b.sum(0) + more, len(a) + len(inner))


def _chords(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(a, b) with |y| <= a y + b for y in [low, high]: the line through the ends, which is above a convex function."""
    run = (high - low).clamp(min=1e-300)
    a = torch.where(low >= 0, 1.0, torch.where(high <= 0, -1.0, (high + low) / run)).clamp(-1, 1)
    b = torch.maximum(low.abs() - a * low, high.abs() - a * high)
    return a, torch.where((low >= 0) | (high <= 0), 0.0, b + _ULPS * (low.abs() + high.abs())).clamp(min=0)


def _total(exact: Tensor, size: Tensor, more: Tensor, terms: int) -> Tensor:
    slack = gamma(2 * terms + 32)
    return ((exact + slack * size).clamp(min=0) + more * (1 + slack)).max() * (1 + slack)
