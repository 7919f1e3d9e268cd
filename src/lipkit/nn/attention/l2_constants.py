"""Constants of L2 self-attention, which is Lipschitz on the whole space."""

import math
from collections.abc import Sequence

import scipy

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_16, ROUNDINGS_32

# Makes a step from zero possible.
_TINY = 2.0**-200
# Below the w at which w log((1 - w)/w) is largest, 0.21781...; its largest value there is phi^-1(1).
_STEEPEST = 0.2178


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


def distance_attention_constant(tokens: int, is_causal: bool = False) -> float:
    """An upper bound of the l2 constant of Z -> P Z with P_ij ~ exp(-s |z_i - z_j|^2), the same for every s > 0.

    With n = `tokens`, N = n - 1, phi(x) = x exp(x + 1), k = phi^-1(N) and g(w) = w log((1 - w)/w),
        Lip <= sqrt(1 + W) + 2 k + 2 sqrt(k T),
        W = min(N/2, (sqrt(4 N + 1) - 1)/2),   T = N max of g on [0, W/N];
    with `is_causal`, where token i sees the tokens up to itself, W = min(N/2, sqrt(2 N + 1) - 1). It grows with n, like
    n^(1/4) log(n) where the bound of Kim et al. grows like n^(1/2) log(n). Proof, with t_ij = s |z_i - z_j|^2,
    o_i = sum_j P_ij z_j and C_i the covariance of the z_j under P_i:
        do_i = sum_j P_ij dz_j + 2 s C_i dz_i - 2 s sum_j P_ij (z_j - o_i) ((z_j - z_i) . dz_j).
    (1) |P| <= sqrt(largest column sum), rows sum to 1. Let w_i = P_ij for a fixed j, i != j, let z_j = 0 and
    k_i = exp(-s |z_i|^2). Then P_ij = 1/(1 + sum_l k_l exp(2 s z_i . z_l)), and w_l <= k_l/(1 + k_l), because a token
    is nearest to itself: so w_l <= 1/2 and w_l <= k_l. Summing w_i times the denominator over i gives
        N >= sum w_i + sum_il w_i w_l exp(2 s z_i . z_l) >= W + W^2,  W = sum w_i,
    by Jensen, since sum_il w_i w_l z_i . z_l = |sum w_i z_i|^2 >= 0. Causal sums are over l <= i, at least half.
    (2) s |C_i| <= sum_j P_ij t_ij <= k (Kim et al.).
    (3) By Cauchy-Schwarz the square of the third part is at most 4 sum_i s |C_i| sum_j P_ij t_ij |dz_j|^2, so at most
    4 k sum_j |dz_j|^2 T_j with T_j = sum_i P_ij t_ij; and t_ij <= log((1 - w_i)/w_i), with g concave.
    Guarantee: UPPER, rounded up. Our derivation; reference: Kim et al., ICML 2021, for k.
    """
    if tokens < 1:
        raise ArgumentError(f"Attention needs at least one token, got {tokens}.")
    others = tokens - 1
    if not others:
        return 1.0
    root = math.sqrt(2 * others + 1) - 1 if is_causal else (math.sqrt(4 * others + 1) - 1) / 2
    # The roots are of numbers of at least 3, so that little cancels.
    column = min(others / 2, root * (1 + ROUNDINGS_16))
    share = column / others
    most = share * math.log((1 - share) / share) * (1 + ROUNDINGS_16) if share < _STEEPEST else inverse_phi(1.0)
    spread = inverse_phi(others)
    bound = math.sqrt(1 + column) + 2 * spread + 2 * math.sqrt(spread * others * most)
    return bound * (1 + ROUNDINGS_32)


def _check(tokens: int, width: int, queries: Sequence[object], values: Sequence[object]) -> None:
    if tokens < 1 or width < 1 or len(queries) != len(values) or not queries:
        raise ArgumentError(
            f"L2 attention needs at least one token and one entry a head, and as many queries as values; got "
            f"{tokens} tokens, width {width}, {len(queries)} queries and {len(values)} values."
        )
