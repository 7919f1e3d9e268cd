"""The mean of a cluster of singular values, which is smooth where its members are not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.decomposition import check_direction, check_matrix
from lipkit.errors import ArgumentError

# The share of the largest value by which a cluster must be apart from the rest; see `decompose`.
_APART = 2.0**-26


def cluster_mean_derivative(
    matrix: Float[Tensor, "m n"], direction: Float[Tensor, "m n"], members: Sequence[int], order: int = 1
) -> Float64[Tensor, ""]:
    """The derivative of any order of the mean of g neighbouring singular values of A + x H, at x = 0.

    The mean is analytic if the cluster is positive and apart from all other values; its members may be equal or not.
    With T = [0 A; A' 0] and T_1 from H, W_0 the eigenvectors (u; v) / 2^(1/2) of the cluster, B_0 the diagonal of its
    values, a basis W of the invariant subspace with W_0'W = I and the matrix B with T(x) W = W B have the series

        B_q = W_0'T_1 W_{q-1},      T W_q - W_q B_0 = -(I - W_0 W_0')(T_1 W_{q-1} - sum_{0<j<q} W_j B_{q-j}),

    and the derivative is q! tr(B_q) / g: <U_g V_g', H> / g for the first. One equation for each column, as of `taylor`,
    but no quotient within the cluster.

    Guarantee: ESTIMATE, in float64. Cost: one decomposition, and order^2 products with g vectors.
    Reference: Kato 1995, II.2 and Luo 2025, theorem 3.3.2, for one repeated value and with exponentially many terms;
    the block recursion is ours.

    Args:
        matrix: The matrix A.
        direction: The direction H.
        members: Positions of the values, counted from the largest, without a gap between them.
        order: Which derivative.
    """
    if order < 1:
        raise ArgumentError(f"The order of a derivative is at least 1, got {order}.")
    matrix = check_matrix("A", matrix)
    change = check_direction("H", direction, matrix)
    at = _cluster(matrix, members)
    part = slice(at.first, at.last + 1)
    root = 2**0.5
    left, right = [at.left[:, part] / root], [at.right[:, part] / root]
    blocks: list[Tensor] = []
    for q in range(1, order + 1):
        a, b = change @ right[-1], change.mT @ left[-1]
        blocks.append(left[0].mT @ a + right[0].mT @ b)
        if q == order:
            break
        for j in range(1, q):
            # blocks[i] is B_{i+1}.
            a = a - left[j] @ blocks[q - j - 1]
            b = b - right[j] @ blocks[q - j - 1]
        first, second = at.solve(a, b)
        left.append(first)
        right.append(second)
    return math.factorial(order) * blocks[-1].trace() / blocks[-1].shape[0]


@final
@dataclass(frozen=True, eq=False)
class _Cluster:
    """A = left diag(values) right', and the run of positions from `first` to `last`."""

    left: Float64[Tensor, "m p"]
    values: Float64[Tensor, " p"]
    right: Float64[Tensor, "n p"]
    first: int
    last: int

    def solve(
        self, a: Float64[Tensor, "m g"], b: Float64[Tensor, "n g"]
    ) -> tuple[Float64[Tensor, "m g"], Float64[Tensor, "n g"]]:
        """X off the cluster with (s_j - T) x_j = (a_j; b_j) there, column by column, s_j the j-th value of the cluster.

        In singular coordinates alpha = U'a, beta = V'b it is, with d_i = s_j^2 - s_i^2,
        (s_j alpha_i + s_i beta_i) / d_i and (s_i alpha_i + s_j beta_i) / d_i; in the cluster only -s_i is left.
        """
        part = slice(self.first, self.last + 1)
        own, each = self.values[part], self.values[:, None]
        alpha, beta = self.left.mT @ a, self.right.mT @ b
        distance = (own - each) * (own + each)
        distance[part] = 1.0
        first, second = (own * alpha + each * beta) / distance, (each * alpha + own * beta) / distance
        mirror = (alpha[part] - beta[part]) / (2 * (each[part] + own))
        first[part], second[part] = mirror, -mirror
        return (
            self.left @ first + (a - self.left @ alpha) / own,
            self.right @ second + (b - self.right @ beta) / own,
        )


def _cluster(matrix: Float64[Tensor, "m n"], members: Sequence[int]) -> _Cluster:
    """The decomposition with a cluster that is positive and apart from all other values."""
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
    return _Cluster(left, values, right_t.mT, first, last)
