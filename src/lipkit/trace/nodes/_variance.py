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


def change_of_projection(
    size: Float64[Tensor, "..."], least: Float64[Tensor, "..."], moved: Float64[Tensor, "..."], eps: float
) -> Float64[Tensor, "..."]:
    """An upper bound of |J - J0|_2 for J = (P - u u') / s, where u = w / s, s^2 = |w|^2 + eps and |w - w0| <= moved.

    `size` is s0, and s >= `least` on the way from w0 to w. With a = u - u0 and b = u + u0
        J - J0 = (P - u u') (1/s - 1/s0) + (u0 u0' - u u') / s0,   |u u' - u0 u0'| <= (|a| |b| + |a.b|) / 2,
    where |a| <= moved / least, |b| <= 2 and a.b = eps (1/s0^2 - 1/s^2); a difference of two projections is at most 1.
    """
    most = size + moved
    inverse = torch.maximum(1 / least - 1 / size, 1 / size - 1 / most).clamp(min=0.0)
    shrunk = eps * inverse * (1 / least + 1 / size)
    turned = (moved / least + shrunk / 2).clamp(max=1.0)
    return round_up(inverse + turned / size, 12) + ROUNDINGS_8 / least
