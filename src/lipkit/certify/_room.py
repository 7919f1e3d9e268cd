"""How far an input can move before it leaves the region on which a constant holds."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import NonFiniteError, RegionError, ShapeError
from lipkit.linops.row_norms import vector_norms
from lipkit.regions import Ball, Box, Everywhere


def room(bound: Bound, at: Tensor | None, like: Tensor) -> Float64[Tensor, " batch"] | None:
    """The distance of each input to the outside of the region, in the input norm, rounded down; None if unlimited.

    Of an l_q ball of radius R around c it is at least (R - ||x - c||_q) n^min(0, 1/p - 1/q), because for p <= q an l_p
    ball lies inside the l_q ball of the same radius; of a box it is the distance to the nearest face, in every l_p.
    """
    if isinstance(bound.region, Everywhere):
        return None
    if at is None:
        raise RegionError(f"This constant holds on a {bound.region} only; give the inputs as `at=`.")
    if len(at) != len(like):
        raise ShapeError(f"One input for each row of logits is needed, got {len(at)} for {len(like)}.")
    x = at.detach().to(torch.float64)
    if not bool(torch.isfinite(x).all()):
        raise NonFiniteError("Some inputs are NaN or infinite, so they lie in no region.")
    given = bound.region.center if isinstance(bound.region, Ball) else getattr(bound.region, "low", x)
    if tuple(given.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
        raise ShapeError(f"The region has shape {tuple(given.shape)}, the inputs {tuple(x.shape)}.")
    match bound.region:
        case Ball(center, size, q):
            offset = (x - center.detach().to(x)).flatten(1)
            p, n = bound.metric.p_in, offset.shape[1]
            shrink = 1.0 if p <= q else n ** (1 / p - 1 / q) * (1 - 2.0**-40)
            left = size - vector_norms(offset, q) * (1 + 2.0**-40)
            return (left * shrink * (1 - 2.0**-40)).clamp(min=0.0)
        case Box(low, high):
            low, high = low.detach().to(x), high.detach().to(x)
            left = torch.minimum(x - low, high - x).flatten(1).amin(1)
            return (left * (1 - 2.0**-50)).clamp(min=0.0)
        case _:
            raise RegionError(f"A radius needs a bound on a ball, a box or everywhere, got one on {bound.region}.")
