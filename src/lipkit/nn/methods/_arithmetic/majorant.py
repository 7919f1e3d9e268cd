"""Diagonal matrices that dominate W'W, for kernels and matrices, rounding included."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.nn.methods._arithmetic.filter_gram import (
    TINY,
    absolute_gram,
    in_enough_digits,
    twice_gram,
    with_lost,
    with_rounding,
)
from lipkit.rounding.slacks import ROUNDINGS_128

# For the rounding of a few operations in float64.
_MARGIN = 1 + ROUNDINGS_128
# Sums of squared Grams that are smaller than so many times what underflow may take from them count as none.
_DEAD = 16.0


def majorant(
    kernel: Float[Tensor, "groups rows cols *taps"],
    steps: int = 1,
    q: Float64[Tensor, "groups cols"] | None = None,
    scale: float = 1.0,
) -> Float64[Tensor, "groups cols"]:
    """A diagonal T with E(w)* E(w) <= T for the symbol E of the kernel at every frequency w; entries of at most one.

    With M the filter Gram, M_ij = sum_j K_j,i * K_j,i' (full correlation), squared `steps` - 1 times,
        T_i = (sum_{j, shifts} |M_ij| q_j / q_i)^(1 / 2^(steps - 1)):
    a matrix is dominated by the weighted sums of its absolute rows, and the square root is operator monotone. For
    steps = 1 these are the numbers of AOL and SLL; for many steps all of them tend to the squared norm. The result is
    T times `scale`, a factor that costs nothing here; with several steps it is infinite for channels of zeros.

    Rounding: fl M differs from M by at most g |K| * |K| entry by entry, g = gamma of the length of the inner products;
    the sum of that over a row, g sum_j a_ji a_j with a_ji = sum over taps of |K_ji| and a_j = sum_i a_ji, is added to
    the diagonal at every step: M <= fl M + D <= (T of fl M)^(1/2) + D, for fl M that is its own adjoint. The dtype is
    that of the kernel; float64 for wide ones, and where torch was told to multiply float32 with fewer digits (tf32),
    which this count does not cover.
    """
    return _diagonal_bound(kernel.to(in_enough_digits(kernel)), steps, q, scale, 1)


def _diagonal_bound(
    kernel: Float[Tensor, "groups rows cols *taps"],
    steps: int,
    q: Float64[Tensor, "groups cols"] | None,
    scale: float,
    reach: int,
) -> Float64[Tensor, "groups cols"]:
    """`majorant` in the dtype of the kernel, whose entries are at most `reach`: one, but for a single step."""
    tiny = TINY[kernel.dtype]
    if steps == 1:
        size = absolute_gram(kernel)
        sums = size.sum(2, keepdim=True) if q is None else size @ q[..., None]
        sums = with_rounding(sums, kernel.detach(), q, scale * _MARGIN).squeeze(2)
        sums = sums if q is None else sums / q
        if reach > 1:
            # The root of what is added below would be no small number any more: channels of zeros are let go.
            sums = torch.threshold(sums, _DEAD * reach * tiny, math.inf)
        # This covers underflow, whatever the weights q are. Where small numbers count as zero, a product with them
        # loses more the larger the other factor is.
        return sums + scale * reach * tiny
    gram = twice_gram(kernel)
    reach = 2 * kernel.shape[1] * math.prod(kernel.shape[3:])
    if steps == 2:
        # Only one product is left, which is far from overflow. Its root is at least that of `tiny`, so the margin also
        # covers what the Gram lost to underflow.
        root = _diagonal_bound(gram, 1, q, 1.0, reach).sqrt()
    else:
        # Any divisor would do, so no gradient needs to pass through it; quotients may underflow, too.
        axes = tuple(range(1, gram.ndim))
        divisor = torch.linalg.vector_norm(gram.detach(), math.inf, axes, keepdim=True).clamp(min=tiny)
        root = _diagonal_bound(gram / divisor, steps - 1, q, 1.0, 1).sqrt() * divisor.view(-1, 1) + 4 * reach * tiny
    return with_lost(root[..., None], kernel.detach(), None, 0.5 * scale * _MARGIN, scale).squeeze(2)
