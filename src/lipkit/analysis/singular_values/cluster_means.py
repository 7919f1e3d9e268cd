"""The mean of a cluster of singular values, which is smooth where its members are not."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.decomposition import check_direction, check_matrix
from lipkit.errors import ArgumentError

# The share of the largest value by which a cluster must be apart from the rest; see `decompose`.
_APART = 2.0**-26


def cluster_mean_derivative(
    matrix: Float[Tensor, "m n"], direction: Float[Tensor, "m n"], members: Sequence[int]
) -> Float64[Tensor, ""]:
    """The derivative of the mean of neighbouring singular values along H: <U_g V_g', H> / g.

    The mean is differentiable if the cluster is positive and apart from all other values, repeated or not inside.

    Guarantee: ESTIMATE, in float64. Cost: one decomposition. Reference: Kato 1995, II.2; Luo 2025, theorem 3.3.2.

    Args:
        matrix: The matrix A.
        direction: The direction H.
        members: Positions of the values, counted from the largest, without a gap between them.
    """
    matrix = check_matrix("A", matrix)
    change = check_direction("H", direction, matrix)
    chosen, rank = sorted(set(members)), min(matrix.shape)
    if not chosen or chosen != list(range(chosen[0], chosen[-1] + 1)) or not 0 <= chosen[0] <= chosen[-1] < rank:
        raise ArgumentError(f"A cluster is a run of positions within 0 to {rank - 1}, got {list(members)}.")
    left, values, right_t = torch.linalg.svd(matrix, full_matrices=False)
    first, last = chosen[0], chosen[-1]
    least = _APART * float(values[0])
    above = float(values[first - 1] - values[first]) if first else float("inf")
    below = float(values[last] - values[last + 1]) if last + 1 < rank else float(values[last])
    if min(above, below) <= least or float(values[last]) <= least:
        raise ArgumentError(
            f"The cluster {chosen} is {above:.1e} below and {below:.1e} above its neighbours and ends at "
            f"{float(values[last]):.1e}; include all members of a repeated value, and no zero."
        )
    part = slice(first, last + 1)
    return torch.einsum("mg,mn,gn->", left[:, part], change, right_t[part]) / len(chosen)
