"""The derivative of attention at a point, and how far it can lie from that on a region."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.linops import BlockRow, DenseStack, LinearOperator, Permute, Reshape, product
from lipkit.rounding.float64 import round_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._small_norms import spectral_above
from lipkit.trace.nodes.attention.probabilities import jacobian_change, jacobian_norm
from lipkit.trace.nodes.attention.score_ranges import AttentionRange, Rows
from lipkit.trace.nodes.matrix_product import multiply_channels


def derivative_at_center(found: AttentionRange) -> LinearOperator:
    """(dQ, dK, dV) -> dO at the center, as operators on heads and queries; nothing is written out for pairs of rows.

    do_i = scale M_i K dq_i + scale M_i dK q_i + sum_j P_ij dv_j with M_i = V' (diag(P_i) - P_i P_i').
    """
    q, k, v = (rows.center for rows in (found.queries, found.keys, found.values))
    chances, turned = _at_center(found)
    heads, queries, width = q.shape
    keys, out = v.shape[-2:]
    target = (heads, queries, out)
    of_q = DenseStack((found.scale * (turned @ k[:, None])).reshape(heads * queries, out, width))
    from_q = product(Reshape(of_q.out_shape, target), product(of_q, Reshape((heads, queries, width), of_q.in_shape)))
    scores = product(multiply_channels(found.scale * q, keys), Permute((heads, keys, width), (0, 2, 1)))
    of_k = DenseStack(turned.reshape(heads * queries, out, keys))
    from_k = product(product(Reshape(of_k.out_shape, target), of_k), Reshape(scores.out_shape, of_k.in_shape))
    return BlockRow((from_q, product(from_k, scores), multiply_channels(chances, out)))


def change_from_center(found: AttentionRange) -> Float64[Tensor, " heads"]:
    """An upper bound in l2 of how far the derivative can lie from `derivative_at_center`, for each head.

    With 0 for the center and m, n the mean rows of V0 and K0, where M_i 1 = 0,
        |M_i - M0_i| <= |V - V0| |J_i| + |V0 - 1 m'| |J_i - J0_i|,
        V: |P - P0|;   Q: scale max_i (|M_i - M0_i| |K - 1 n'| + |M0_i| |K - K0|);
        K: scale (min(max_i |M_i - M0_i| |Q|, (sum_i |M_i - M0_i|^2 |q_i|^2)^(1/2)) + max_i |M0_i| |Q - Q0|),
    all norms spectral, and the root of the sum of their squares. J_i - J0_i by `jacobian_change`. Our derivation.
    """
    q, k, v = found.queries, found.keys, found.values
    keys, width = k.center.shape[-2:]
    queries = q.center.shape[-2]
    chances, turned = _at_center(found)
    point_q, point_k, point_v = (Rows(x.center, x.center, x.center, torch.zeros_like(x.radius)) for x in (q, k, v))
    exact = AttentionRange(point_q, point_k, point_v, found.scale, found.mask)
    error = round_up(torch.linalg.vector_norm(_far(chances, *exact.probabilities), dim=-1), keys + 2)
    far = _far(chances, *found.probabilities)
    steep = jacobian_norm(2.0, *found.probabilities)
    apart = _score_changes(found)
    moved = torch.minimum(round_up(steep * apart, 1) + error, round_up(torch.linalg.vector_norm(far, dim=-1), keys + 2))
    bent = jacobian_change(*found.probabilities, apart) + round_up(4 * error, 1) + ROUNDINGS_8
    mean = v.center.mean(-2, keepdim=True)
    spread = spectral_above(v.center - mean)[:, None]
    change = _change(v)[:, None] * steep + spread * bent
    size = spectral_above(turned)
    by_query = (change * k.deviation[:, None] + size * _change(k)[:, None]).amax(-1)
    rowwise = torch.linalg.vector_norm(change * q.norms, dim=-1)
    by_key = torch.minimum(change.amax(-1) * q.spectral, rowwise) + size.amax(-1) * _change(q)
    by_value = torch.minimum(spectral_above(far), torch.linalg.vector_norm(moved, dim=-1))
    scale = abs(found.scale)
    total = torch.sqrt(by_value**2 + scale**2 * (by_query**2 + by_key**2))
    # The entries at the center are sums of `width` or `keys` products of rounded numbers: P (v - o), and these by q, k.
    sizes = [x.norms.amax(-1) for x in (q, k, v)]
    lost = 1 + sizes[2] * (1 + scale * (sizes[0] + sizes[1]))
    slack = 64 * ROUNDINGS_8 * (keys + width + 16) * math.sqrt(queries * keys) * lost
    return round_up(total, queries + keys + 24) + slack


def _at_center(found: AttentionRange) -> tuple[Tensor, Tensor]:
    """P (heads, queries, keys) and M (heads, queries, out, keys) at the center, M_ij = P_ij (v_j - o_i)."""
    q, k, v = (rows.center for rows in (found.queries, found.keys, found.values))
    scores = found.scale * (q @ k.mT)
    chances = (scores if found.mask is None else scores + found.mask.to(scores)).softmax(-1)
    apart = v.mT[:, None] - (chances @ v)[..., None]
    return chances, chances[:, :, None] * apart


def _score_changes(found: AttentionRange) -> Float64[Tensor, "heads queries"]:
    """How far the scores of a query can lie from those at the center."""
    q, k = found.queries, found.keys
    norms = [torch.linalg.vector_norm(x.center, dim=-1) for x in (q, k)]
    dq, dk = _row_changes(q)[..., None], _row_changes(k)[:, None]
    moved = norms[0][..., None] * dk + norms[1][:, None] * dq + dq * dk
    return round_up(abs(found.scale) * torch.linalg.vector_norm(moved, dim=-1), sum(q.center.shape) + 16)


def _row_changes(rows: Rows) -> Float64[Tensor, "heads rows"]:
    box = torch.linalg.vector_norm(_far(rows.center, rows.low, rows.high), dim=-1)
    return torch.minimum(round_up(box, rows.low.shape[-1] + 2), rows.radius)


def _change(rows: Rows) -> Float64[Tensor, " heads"]:
    """|X - X0|_2 for each head."""
    box = spectral_above(_far(rows.center, rows.low, rows.high))
    return torch.minimum(box, rows.radius)


def _far(at: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How far numbers in [low, high] can lie from `at`."""
    return round_up(torch.maximum(high - at, at - low).clamp(min=0.0), 1)
