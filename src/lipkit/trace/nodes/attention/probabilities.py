"""Probabilities of a softmax whose scores lie in a box, and the norm of its Jacobian there."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.float64 import round_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes.activations.curve import Interval

# Stands for an infinite score: its exponential is 0 or overwhelms all others, and differences stay finite.
_FAR = 1e300


def log_probabilities(low: Float64[Tensor, "... n"], high: Float64[Tensor, "... n"]) -> Interval:
    """The range of log p_i, p = softmax(z) along the last axis, for z in a box; exact up to rounding.

    log p_i = -softplus(log sum_{j != i} exp z_j - z_i) rises with z_i and falls with every other score. The sum over
    the others is made of a running sum from the left and one from the right: nothing cancels. A score of -inf is a
    masked one.
    """
    n = low.shape[-1]
    sizes = torch.where(torch.isfinite(low), low.abs(), 0.0).maximum(torch.where(torch.isfinite(high), high.abs(), 0.0))
    # n sums of logarithms, each within two units in the last place of its size and of 1.
    slack = (n + 8) * ROUNDINGS_8 * (1 + sizes.amax(-1, keepdim=True))
    low, high = low.clamp(-_FAR, _FAR), high.clamp(-_FAR, _FAR)
    smallest = -torch.logaddexp(_others(high) - low, torch.zeros_like(low)) - slack
    largest = -torch.logaddexp(_others(low) - high, torch.zeros_like(low)) + slack
    return torch.where(smallest < -_FAR / 2, -torch.inf, smallest), largest.clamp(max=0.0)


def probabilities(low: Float64[Tensor, "... n"], high: Float64[Tensor, "... n"]) -> Interval:
    """The range of softmax(z) along the last axis for z in a box."""
    smallest, largest = log_probabilities(low, high)
    return smallest.exp() * (1 - ROUNDINGS_8), round_up(largest.exp(), 2).clamp(max=1.0)


def jacobian_norm(p: float, smallest: Float64[Tensor, "... n"], largest: Float64[Tensor, "... n"]) -> Tensor:
    """An upper bound of the l_p norm of J = diag(p) - p p' for probabilities in a box; one for each row.

    A row sum of |J| is 2 p_i (1 - p_i), so l1 and linf (J is symmetric) take the largest over the box: 1/2 unless all
    probabilities stay on one side. In l2 also |J| <= g = p_1 (1 - p_1 + p_2) with the two largest: the secular
    equation sum p_i^2 / (p_i - t) = 1 has its root below g, as p_i^2 / (g - p_i) <= p_i p_2 / (g - p_2) for i > 1 and
    g - p_2 = (1 - p_1)(p_1 - p_2). g rises in p_2 <= min(p_1, 1 - p_1, second largest end), so that only p_1 is left:
    the largest at the ends of the pieces and at the vertex (1 + p_2) / 2. Our derivation; g is from Yudin et al., 2025.
    """
    # 2 t (1 - t) on [smallest, largest] is largest nearest to 1/2; for the row that is an upper bound.
    t = torch.full_like(smallest, 0.5).clamp(smallest, largest)
    rows = (2 * t * (1 - t)).amax(-1)
    if p != 2 or smallest.shape[-1] < 2:
        return round_up(rows, 3)
    top = largest.topk(2, -1).values
    least, most, second = smallest.amax(-1), top[..., 0], top[..., 1]

    def bound(p1: Tensor) -> Tensor:
        p1 = torch.minimum(torch.maximum(p1, least), most)
        return p1 * (1 - p1 + torch.minimum(torch.minimum(p1, 1 - p1), second))

    half = torch.full_like(most, 0.5)
    places = (least, most, second, 1 - second, (1 + second) / 2, half)
    peak = torch.stack([bound(place) for place in places]).amax(0)
    # Places are rounded, and beside one the bound moves by less than twice the distance.
    return round_up(torch.minimum(rows, peak + ROUNDINGS_8), 4)


def jacobian_change(
    smallest: Float64[Tensor, "... n"], largest: Float64[Tensor, "... n"], moved: Float64[Tensor, "..."]
) -> Float64[Tensor, "..."]:
    """An upper bound of |J(z) - J(z0)|_2 for J = diag(p) - p p' where |z - z0|_2 <= moved and p lies in a box; by row.

    The derivative of v' J v along w is the third cumulant E[(v - Ev)^2 (w - Ew)] <= Var(v) max_i |w_i - Ew|, and
        Var(v) <= |J|,   |w_i - Ew|^2 <= |e_i - p|^2 = (1 - p_i)^2 + sum_{j != i} p_j^2 <= (1 - p_i) (1 - p_i + p_max)
    for unit vectors v and w, with p_max the largest of the others, itself at most 1 - p_i. Our derivation.
    """
    others = 1 - smallest.amin(-1)
    apart = others * (others + torch.minimum(largest.amax(-1), others))
    return round_up(jacobian_norm(2.0, smallest, largest) * apart.sqrt() * moved, 8)


def _others(z: Tensor) -> Tensor:
    """log sum_{j != i} exp z_j along the last axis; -inf for a single entry."""
    nothing = torch.full_like(z[..., :1], -_FAR)
    left = torch.cat([nothing, torch.logcumsumexp(z, -1)[..., :-1]], -1)
    right = torch.cat([nothing, torch.logcumsumexp(z.flip(-1), -1)[..., :-1]], -1).flip(-1)
    return torch.logaddexp(left, right)
