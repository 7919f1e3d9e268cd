"""The norm of operators without negative entries, from above, by a few products with a vector."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._arithmetic.filter_gram import split_phases
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._base import Blocks
from lipkit.rounding.slacks import UNIT

# Products with W'W. Entries of one sign leave a wide gap below the largest singular value, so few are enough.
_PRODUCTS = 8
# The smallest entry of the vector next to its largest, so that all stay positive.
_SMALLEST_SHARE = 2.0**-20


def of_norm_one(weight: Float64[Tensor, "groups rows cols *taps"], geometry: Geometry, dtype: torch.dtype) -> Blocks:
    """A weight without negative entries over an upper bound of its norm, in `dtype`, of norm at most 1.

    The symbol of a kernel without negative entries is largest at frequency zero, entry by entry, so its norm on inputs
    of every size is at most that of the matrix of sums over taps; a stride makes channels of phases first. For
    matrices see `nonnegative_norm`. Weights all below 2^-60 count as small and stay so. Gradient: of the formula.
    """
    # Constant for autograd: it cancels in the quotient.
    peak = weight.detach().flatten(1).amax(1).clamp(min=LEAST).reshape(-1, *(1,) * (weight.ndim - 1))
    level = weight / peak
    matrix = split_phases(level, geometry).flatten(3).sum(-1)
    taps = math.prod(geometry.taps)
    bound = nonnegative_norm(matrix) * (1 + (taps + 4) * UNIT)
    return store(level / bound.reshape(peak.shape), dtype)


def nonnegative_norm(matrix: Float64[Tensor, "groups rows cols"]) -> Float64[Tensor, " groups"]:
    """An upper bound of ||W|| for W >= 0, at least 1: max(1, max_i (W'W q)_i / q_i)^(1/2) for a vector q > 0.

    Any positive q is sound (Collatz and Wielandt: W'W has no negative entries, and diag(q)^-1 W'W diag(q) has these
    row sums). After some steps q <- W'W q it is near the first singular vector and the bound near the norm. Sums of
    numbers of one sign lose rows + cols units of rounding, which is added.
    """
    rows, cols = matrix.shape[-2:]
    q = torch.ones_like(matrix[..., :1, :]).mT
    image = matrix.mT @ (matrix @ q)
    for _ in range(_PRODUCTS):
        # Any multiple of q serves; the size of the image needs no gradient.
        q = image / image.detach().amax(1, keepdim=True).clamp(min=LEAST) + _SMALLEST_SHARE
        image = matrix.mT @ (matrix @ q)
    square = (image / q).amax((1, 2)) * (1 + 2 * (rows + cols + 8) * UNIT)
    return square.clamp(min=1.0).sqrt() * (1 + 4 * UNIT)
