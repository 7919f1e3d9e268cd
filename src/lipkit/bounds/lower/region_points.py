"""Points of a region: drawn uniformly, and put back when a step has left it."""

import math

import torch
from jaxtyping import Float64
from scipy import special
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.linops.queries.row_norms import vector_norms
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.rounding.slacks import ROUNDINGS_8

# Scales, as powers of ten, that points of the whole space are drawn at.
_SCALES = (-2.0, 2.0)
# How much shorter than the radius a point that rounding left outside is made, in turn.
_SHRINKS = (0.0, 2.0**-40, 2.0**-20, 2.0**-10)


def drawn(region: Region, shape: Shape, count: int, generator: torch.Generator) -> Float64[Tensor, "count ..."]:
    """`count` points of the region on the generator's device, uniform; on the whole space Gaussian at scales from 0.01
    to 100, evenly in the logarithm."""
    full = (count, *shape)
    match region:
        case Ball(center, radius, p):
            return inside(region, center.detach().to(generator.device) + radius * _unit_ball(full, p, generator))
        case Box(low, high):
            low, high = low.detach().to(generator.device), high.detach().to(generator.device)
            uniform = torch.rand(full, dtype=torch.float64, device=generator.device, generator=generator)
            return inside(region, low + uniform * (high.double() - low))
        case Everywhere():
            scales = torch.rand(count, dtype=torch.float64, device=generator.device, generator=generator)
            scales = 10 ** (_SCALES[0] + (_SCALES[1] - _SCALES[0]) * scales)
            return scales.reshape(-1, *(1,) * len(shape)) * _normal(full, generator)
        case _:
            raise ArgumentError(f"Points are drawn from a Ball, a Box or Everywhere, got {region}.")


def _unit_ball(shape: tuple[int, ...], p: float, generator: torch.Generator) -> Tensor:
    """Uniform in the unit ball of l_p: a vector of density exp(-|x|_p^p) over (|x|_p^p + exponential)^(1/p)."""
    uniform = torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)
    if p == math.inf:
        return 2 * uniform - 1
    if p == 2:
        x = _normal(shape, generator) / math.sqrt(2)
    else:
        # |x|^p has a gamma distribution; torch draws it from the global generator, so from exact quantiles instead.
        size = torch.from_numpy(special.gammaincinv(1 / p, uniform.numpy(force=True))).to(uniform)
        sign = torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator) - 0.5
        x = size ** (1 / p) * sign.sign()
    more = torch.rand(shape[0], dtype=torch.float64, device=generator.device, generator=generator)
    total = (x.abs() ** p).flatten(1).sum(1) - torch.log1p(-more)
    return x / total.reshape(-1, *(1,) * (len(shape) - 1)) ** (1 / p)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=generator.device, generator=generator)


def inside(region: Region, points: Float64[Tensor, "count ..."]) -> Float64[Tensor, "count ..."]:
    """The points, each moved into the region if it lies outside; toward the center of a ball, entry by entry in a box.

    Rounding included: what is returned satisfies the inequality of the region in real arithmetic, or is its center.
    """
    match region:
        case Box(low, high):
            low, high = (end.detach().to(points) for end in (low, high))
            return torch.minimum(torch.maximum(points, low), high)
        case Ball(center, radius, p):
            center = center.detach().to(points)
            for shrink in _SHRINKS:
                length = _distance(points, center, p)
                factor = (radius * (1 - shrink) / length.clamp(min=1e-300)).clamp(max=1.0)
                outside = length > radius
                if not bool(outside.any()):
                    return points
                moved = center + (points - center) * _tail(factor, points)
                points = torch.where(_tail(outside, points), moved, points)
            return torch.where(_tail(_distance(points, center, p) > radius, points), center, points)
        case _:
            return points


def _distance(points: Tensor, center: Tensor, p: float) -> Tensor:
    # The difference of two floating-point numbers is rounded once.
    return vector_norms((points - center).flatten(1), p) * (1 + ROUNDINGS_8)


def _tail(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.ndim - 1))
