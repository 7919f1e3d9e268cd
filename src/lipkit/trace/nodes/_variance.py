"""How much a group of entries varies: at a point, and at least in a box."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.float64 import round_down, round_up
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8
from lipkit.trace.nodes.activations.curve import Interval


def group_norms(z: Float64[Tensor, "... d"], centered: bool) -> Interval:
    """A lower and an upper bound of |P z| for each group along the last axis, P = I - 11'/d or I."""
    d = z.shape[-1]
    part = z - z.mean(-1, keepdim=True) if centered else z
    norm = torch.linalg.vector_norm(part, dim=-1, keepdim=True)
    # A mean of d numbers is off by d units in the last place of the largest, a sum of squares relatively by d.
    slack = ROUNDINGS_4 * (d + 4) * (norm + d**0.5 * z.abs().amax(-1, keepdim=True))
    return (norm - slack).clamp(min=0.0), norm + slack


def centered_box(low: Float64[Tensor, "... d"], high: Float64[Tensor, "... d"]) -> Interval:
    """The range of every entry of z - mean(z) in a box: its own end against the opposite ends of all others."""
    d = low.shape[-1]
    largest = torch.maximum(low.abs(), high.abs()).amax(-1, keepdim=True)

    def end(own: Tensor, other: Tensor, sign: float) -> Tensor:
        value = own - (own + (other.sum(-1, keepdim=True) - other)) / d
        # Where an end is infinite nothing is known.
        return torch.where(torch.isfinite(largest), value + sign * ROUNDINGS_8 * (d + 4) * largest, sign * torch.inf)

    return end(low, high, -1.0), end(high, low, 1.0)


def least_norm(low: Float64[Tensor, "... d"], high: Float64[Tensor, "... d"]) -> Float64[Tensor, "... 1"]:
    """A lower bound of |z| for each group in a box: the distance of the box from 0."""
    nearest = torch.maximum(low, -high).clamp(min=0.0)
    return round_down(torch.linalg.vector_norm(nearest, dim=-1, keepdim=True), low.shape[-1] + 2)


def least_spread(low: Float64[Tensor, "... d"], high: Float64[Tensor, "... d"]) -> Float64[Tensor, "... 1"]:
    """A lower bound of |z - mean(z)| for each group in a box.

    As |z - mean(z)|^2 = min_m sum_i (z_i - m)^2, the smallest in the box is min_m g(m) with
    g(m) = sum_i dist(m, [low_i, high_i])^2, which is convex. Bisection of g' finds m, and by convexity the minimum is
    at least g(m) - |g'(m)| times the width of the bracket, wherever the bisection stopped. Our derivation.
    """
    d = low.shape[-1]
    left, right = high.amin(-1, keepdim=True), low.amax(-1, keepdim=True)
    if not bool((left < right).any()):
        return torch.zeros_like(left)
    # If some m lies in all intervals there is a constant vector, of spread 0; elsewhere both ends are finite.
    flat = left >= right
    left, right = torch.where(flat, 0.0, left), torch.where(flat, 0.0, right)
    start, end = left, right
    middle = (start + end) / 2
    for _ in range(52):
        falling = _half_slope(middle, low, high) < 0
        start, end = torch.where(falling, middle, start), torch.where(falling, end, middle)
        middle = (start + end) / 2
    beyond = torch.maximum(middle - high, low - middle).clamp(min=0.0)
    size = torch.maximum(left.abs(), right.abs())
    width = right - left
    slope = _half_slope(middle, low, high).abs() + ROUNDINGS_8 * d * d * (width + size)
    least = (beyond * beyond).sum(-1, keepdim=True) * (1 - ROUNDINGS_8 * (d + 2)) - round_up(2 * slope * width, 4)
    # Each difference is rounded once, relative to its terms.
    norm = least.clamp(min=0.0).sqrt() - ROUNDINGS_4 * d**0.5 * (size + width)
    return torch.where(flat, 0.0, round_down(norm.clamp(min=0.0), 2))


def _half_slope(m: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return ((m - high).clamp(min=0.0) - (low - m).clamp(min=0.0)).sum(-1, keepdim=True)


def distances(
    low: Float64[Tensor, "... d"], high: Float64[Tensor, "... d"], center: Float64[Tensor, "... d"], radius: Tensor
) -> Float64[Tensor, "... 1"]:
    """How far each group along the last axis can lie from that of the center, in the box and in the ball."""
    box = torch.linalg.vector_norm(torch.maximum(high - center, center - low).clamp(min=0.0), dim=-1, keepdim=True)
    return torch.minimum(round_up(box, center.shape[-1] + 4), radius)


def apart(
    center: Float64[Tensor, "... d"], other: Float64[Tensor, "... d"], distance: Float64[Tensor, "... 1"]
) -> Float64[Tensor, "... 1"]:
    """How far each group can lie from that of `other`, if it lies within `distance` of that of the center."""
    between = torch.linalg.vector_norm(center - other, dim=-1, keepdim=True)
    return round_up(distance + between, center.shape[-1] + 4)


def change_of_projection(least: Float64[Tensor, "..."], moved: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """An upper bound of |J(w) - J(w0)|_2 for J = (I - u u') / s, the Jacobian of u = w / s with s^2 = |w|^2 + eps.

    Where |w - w0| <= moved and s >= least in between: 2 / sqrt(3) moved / least^2. For a unit vector h
        s^2 dJ[h] = -(u.h) I + 3 (u.h) u u' - h u' - u h',
    which acts in the plane of u and h only, and there, with c the cosine of their angle, t = 1 - |u|^2, k = 3 t + 1 and
    (1 - t)^(1/2) x its norm, x^2 - 1 = k (c x - c^2) <= k x^2 / 4, hence x^2 <= 4 / (4 - k) = 4 / (3 (1 - t)).
    Beyond the plane it is |u.h| <= 1. Our derivation.
    """
    return round_up(moved / least * (2 / 3**0.5) / least, 8)
