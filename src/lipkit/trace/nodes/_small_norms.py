"""Upper bounds of the spectral norm of small matrices that are known up to a box or a ball."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.float64 import round_up
from lipkit.rounding.slacks import ROUNDINGS_4

# In the place of a norm that is zero, so that its logarithm is finite.
_TINY = 2.0**-1000


def spectral_above(matrix: Float64[Tensor, "... m n"], steps: int = 6) -> Float64[Tensor, "..."]:
    """An upper bound of |M|_2, at most rank^(1 / 2^(steps+1)) - 1 too large.

    |M|^(2 q) = |(M'M)^q|_2 <= |(M'M)^q|_F for q = 2^(steps - 1) squarings of the Gram matrix, rescaled to Frobenius
    norm 1 before each. A product of such n x n matrices is off by n 2^-52 in that norm, while its own is at least
    1 / sqrt(n): relatively n^1.5 2^-52 a step, and later roots shrink it.
    """
    size = torch.linalg.matrix_norm(matrix)
    safe = torch.where((size > 0) & torch.isfinite(size), size, 1.0)[..., None, None]
    scaled = matrix / safe
    gram = scaled.mT @ scaled if matrix.shape[-1] <= matrix.shape[-2] else scaled @ scaled.mT
    log = torch.zeros_like(size)
    for step in range(steps):
        norm = torch.linalg.matrix_norm(gram).clamp(min=_TINY)
        log = log + norm.log() / 2 ** (step + 1)
        gram = gram / norm[..., None, None]
        if step + 1 < steps:
            gram = gram @ gram
    n = gram.shape[-1]
    bound = size * log.exp() * (1 + (steps + 2) * (n**1.5 + n + 8) * ROUNDINGS_4)
    # The Frobenius norm is a bound itself, exact for vectors; an infinite matrix stays infinite.
    whole = round_up(size, matrix.shape[-1] * matrix.shape[-2] + 2)
    return torch.where(torch.isfinite(size), torch.minimum(bound, whole), torch.inf)


def spectral_within(
    low: Float64[Tensor, "... m n"],
    high: Float64[Tensor, "... m n"],
    center: Float64[Tensor, "... m n"],
    radius: Float64[Tensor, ""],
) -> Float64[Tensor, "..."]:
    """An upper bound of |M|_2 for M in the box and in the Frobenius ball.

    In the box |M|_2 <= | |M| |_2 <= |largest absolute values|_2, for norms of nonnegative matrices rise with their
    entries; also |M|_2 <= |middle|_2 + |spread|_2. In the ball |M|_2 <= |center|_2 + radius.
    """
    box = spectral_above(torch.maximum(low.abs(), high.abs()))
    middle = (low + high) / 2
    spread = torch.maximum(high - middle, middle - low) * (1 + ROUNDINGS_4)
    finite = torch.isfinite(spread).all(-1).all(-1)
    kept = finite[..., None, None]
    apart = spectral_above(torch.where(kept, middle, 0.0)) + spectral_above(torch.where(kept, spread, 0.0))
    apart = torch.where(finite, round_up(apart, 1), torch.inf)
    return torch.minimum(torch.minimum(box, apart), round_up(spectral_above(center) + radius, 1))
