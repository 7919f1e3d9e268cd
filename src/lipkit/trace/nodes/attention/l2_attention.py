"""Constants of L2 self-attention, which is Lipschitz on the whole space."""

import math
from collections.abc import Sequence

import scipy

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_16, ROUNDINGS_32

# Makes a step from zero possible.
_TINY = 2.0**-200


def inverse_phi(y: float) -> float:
    """The x >= 0 with x exp(x + 1) = y, rounded up: x = W(y / e) with Lambert's W."""
    if not (y >= 0 and math.isfinite(y)):
        raise ArgumentError(f"phi has an inverse for finite y >= 0, got {y}.")
    guess = float(scipy.special.lambertw(y / math.e).real)
    # phi rises, so a point at which it is large enough is an upper bound; a guess is proven, not trusted.
    step = ROUNDINGS_8
    while guess * math.exp(guess + 1) * (1 - ROUNDINGS_16) < y:
        guess, step = guess * (1 + step) + step * _TINY, 2 * step
    return guess


def l2_attention_constant(
    tokens: int, width: int, queries: Sequence[float], values: Sequence[float], out: float
) -> float:
    """An upper bound of the l2 constant of multi-head L2 self-attention with tied queries and keys.

    Head h: P_ij ~ exp(-|x_i W - x_j W|^2 / sqrt(w)) with W = W_Q,h of (dim, w) and w = `width` = dim / heads, output
    P x A W_V,h with A = W W' / sqrt(w); all heads side by side, times W_O. With n tokens and phi(x) = x exp(x + 1),
        Lip <= sqrt(n / w) (4 phi^-1(n - 1) + 1) (sum_h |W_Q,h|^4 |W_V,h|^2)^(1/2) |W_O|.
    `queries` and `values` are upper bounds of |W_Q,h| and |W_V,h|, `out` of |W_O|. Guarantee: UPPER, rounded up.
    The power 4 is our correction: the printed 2 is not homogeneous in W_Q, and false when W_Q is large.
    Reference: Kim et al., ICML 2021, theorem 3.2, corrected.
    """
    _check(tokens, width, queries, values)
    heads = math.fsum(q**4 * v**2 for q, v in zip(queries, values, strict=True))
    bound = math.sqrt(tokens / width) * (4 * inverse_phi(tokens - 1) + 1) * math.sqrt(heads) * out
    return bound * (1 + ROUNDINGS_32)


def linf_attention_constant(
    tokens: int, width: int, queries: Sequence[tuple[float, float]], values: Sequence[float], out: float
) -> float:
    """An upper bound of the linf constant of the same map.

        Lip <= (4 phi^-1(n - 1) + 1 / sqrt(w)) |W_O'|_inf max_h |W_Q,h|_inf |W_Q,h'|_inf max_h |W_V,h'|_inf.
    `queries` are pairs (|W_Q,h|_inf, |W_Q,h'|_inf), `values` are |W_V,h'|_inf, `out` is |W_O'|_inf. Guarantee: UPPER,
    rounded up. 1 / sqrt(w) is our correction of the printed 1 / w, which is false for a single token.
    Reference: Kim et al., ICML 2021, theorem 3.2, corrected.
    """
    _check(tokens, width, queries, values)
    rows = max(a * b for a, b in queries)
    bound = (4 * inverse_phi(tokens - 1) + 1 / math.sqrt(width)) * out * rows * max(values)
    return bound * (1 + ROUNDINGS_32)


def _check(tokens: int, width: int, queries: Sequence[object], values: Sequence[object]) -> None:
    if tokens < 1 or width < 1 or len(queries) != len(values) or not queries:
        raise ArgumentError(
            f"L2 attention needs at least one token and one entry a head, and as many queries as values; got "
            f"{tokens} tokens, width {width}, {len(queries)} queries and {len(values)} values."
        )
