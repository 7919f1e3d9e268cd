"""One singular value of a matrix: its vectors, its proven distance to the others, and the reduced resolvent."""

from dataclasses import dataclass
from typing import NoReturn, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, ShapeError
from lipkit.linops._base import Live
from lipkit.rounding.float64 import gamma, norm_up, product_error, sums_up

# Closer to another value than this share of the largest one, a derivative has less than half of the digits of float64.
SIMPLE = 2.0**-26


@final
@dataclass(frozen=True, eq=False)
class Decomposition(Live):
    """A = sum_i values_i left_i right_i', and the index k of the singular value that is looked at.

    `error` bounds |values_i - sigma_i(A)| for every i. `gap` is at most the distance of sigma_k to the rest of the
    spectrum of T = [0 A; A' 0], which is {+-sigma_i}, and 0 if A is not square.
    """

    left: Float64[Tensor, "m p"]
    values: Float64[Tensor, " p"]
    right: Float64[Tensor, "n p"]
    k: int
    error: float
    gap: float

    @property
    def value(self) -> float:
        """sigma_k, computed."""
        return float(self.values[self.k])

    @property
    def u(self) -> Float64[Tensor, " m"]:
        """The left singular vector."""
        return self.left[:, self.k]

    @property
    def v(self) -> Float64[Tensor, " n"]:
        """The right singular vector."""
        return self.right[:, self.k]

    def resolvent(
        self, a: Float64[Tensor, "*b m"], b: Float64[Tensor, "*b n"]
    ) -> tuple[Float64[Tensor, "*b m"], Float64[Tensor, "*b n"]]:
        """S (a; b) for the reduced resolvent S = sum over eigenvalues t != sigma_k of T of w w' / (t - sigma_k).

        In singular coordinates alpha = U'a, beta = V'b it is, with d_i = sigma_k^2 - sigma_i^2,
            -(sigma_k alpha_i + sigma_i beta_i) / d_i,  -(sigma_i alpha_i + sigma_k beta_i) / d_i   for i != k,
            -+(alpha_k - beta_k) / (4 sigma_k)                                                      for i = k,
        and -1 / sigma_k off the singular vectors. The term for i = k belongs to the eigenvalue -sigma_k.
        Cost: four products with U and V. Reference: Luo 2025, (3.138), where that term is missing.
        """
        s, k = self.values, self.k
        alpha, beta = a @ self.left, b @ self.right
        distance = (s[k] - s) * (s[k] + s)
        distance[k] = 1.0
        first, second = -(s[k] * alpha + s * beta) / distance, -(s * alpha + s[k] * beta) / distance
        mirror = (alpha[..., k] - beta[..., k]) / (4 * s[k])
        first[..., k], second[..., k] = -mirror, mirror
        return (
            first @ self.left.mT - (a - alpha @ self.left.mT) / s[k],
            second @ self.right.mT - (b - beta @ self.right.mT) / s[k],
        )


def check_matrix(name: str, matrix: Float[Tensor, "m n"]) -> Float64[Tensor, "m n"]:
    """The matrix in float64 and without graph; refuses what is no finite real matrix."""
    if matrix.ndim != 2 or matrix.is_complex() or not matrix.numel():
        raise ShapeError(f"{name} must be a real matrix with entries, got {matrix.dtype} of {tuple(matrix.shape)}.")
    wide = matrix.detach().to(torch.float64)
    if not bool(torch.isfinite(wide).all()):
        raise NonFiniteError(f"{name} has NaN or infinite entries, so it has no singular values; repair it first.")
    return wide


def decompose(matrix: Float[Tensor, "m n"], k: int) -> Decomposition:
    """The singular value decomposition, if sigma_k is positive and apart from all others.

    Nothing of the library's decomposition is trusted: with E = A - U S V' and defects U'U - I, V'V - I of norms at most
    x and y < 1/2, every |values_i - sigma_i(A)| is at most ||E|| + 2 values_0 (x + y), all rounding counted. A value
    counts as apart if its distance is more than 2^-26 of sigma_1. The others may be repeated or zero.

    Cost: one decomposition and three products.
    """
    matrix = check_matrix("A", matrix)
    rank = min(matrix.shape)
    if not 0 <= k < rank:
        raise ArgumentError(f"A matrix of {tuple(matrix.shape)} has singular values 0 to {rank - 1}, got k = {k}.")
    left, values, right_t = torch.linalg.svd(matrix, full_matrices=False)
    if not 1e-100 < float(values[0]) < 1e100 and float(values[0]) > 0:
        raise NonFiniteError(f"sigma_0 = {float(values[0]):g} squares out of the range of float64; rescale the matrix.")
    error = _values_error(matrix, left, values, right_t.mT)
    value, largest = float(values[k]), float(values[0])
    if not value > max(SIMPLE * largest, 2 * error):
        raise ArgumentError(
            f"sigma_{k} = {value:g} is zero next to sigma_0 = {largest:g}; it has no derivatives there, choose another."
        )
    others = torch.cat([values[:k], values[k + 1 :]])
    between = float((others - values[k]).abs().min()) if rank > 1 else 2 * value
    if not between > max(SIMPLE * largest, 4 * error):
        refuse_repeated(k, value, between)
    square = matrix.shape[0] == matrix.shape[1]
    gap = min(between, 2 * value if square else value) - 4 * error
    return Decomposition(left, values, right_t.mT.contiguous(), k, error, gap)


def refuse_repeated(k: int, value: float, gap: float) -> NoReturn:
    """Say that sigma_k is too close to its neighbour for derivatives."""
    raise ArgumentError(
        f"sigma_{k} = {value:.17g} is repeated: the gap to its neighbour is {gap:.1e}, so it may have no "
        "derivatives; ask cluster_mean_derivative for the mean of the cluster."
    )


def singular_vector_derivatives(
    matrix: Float[Tensor, "m n"], direction: Float[Tensor, "m n"], k: int = 0
) -> tuple[Float64[Tensor, " m"], Float64[Tensor, " n"]]:
    """The derivatives (du, dv) of the singular vectors of sigma_k along a direction H: -S (H v; H'u).

    The gauge is u'du = v'dv = 0, which unit vectors of a smooth family have. Signs are those of `torch.linalg.svd`.

    Guarantee: ESTIMATE, in float64. Cost: one decomposition. Derived from the framework of Luo 2025, chapter 3.
    """
    at = decompose(matrix, k)
    change = check_direction("H", direction, matrix)
    a, b = change @ at.v, change.mT @ at.u
    slope = torch.dot(at.u, a)
    du, dv = at.resolvent(a - slope * at.u, b - slope * at.v)
    return -du, -dv


def check_direction(name: str, direction: Float[Tensor, "m n"], matrix: Tensor) -> Float64[Tensor, "m n"]:
    """A direction in float64, if it has the shape of the matrix."""
    wide = check_matrix(name, direction)
    if wide.shape != matrix.shape:
        raise ShapeError(f"{name} must have the shape of A, {tuple(matrix.shape)}, got {tuple(wide.shape)}.")
    return wide


def _values_error(matrix: Tensor, left: Tensor, values: Tensor, right: Tensor) -> float:
    """A bound of |values_i - sigma_i(matrix)| for all i at once.

    sigma_i(U S V') lies between s_i sigma_min(U) sigma_min(V) and s_i ||U|| ||V||, and sigma_i changes by at most the
    norm of the rest. Norms of U and V are within [1 - x, 1 + x] of 1 for defects x < 1.
    """
    scaled = left * values
    rest = norm_up(matrix - scaled @ right.mT, 2)
    # One rounding of the scaled columns, the product, the difference.
    size = norm_up(left, 2) * values[0] * norm_up(right, 2) * (1 + gamma(8))
    rest = rest + 2 * product_error(values.numel() + 2, torch.float64) * (size + norm_up(matrix, 2))
    defects = torch.stack([_defect(left), _defect(right)])
    if not bool((defects < 0.5).all()):
        raise NotProvenError("The decomposition returned vectors that are not orthonormal; check the matrix.")
    return float((rest + 2 * values[0] * defects.sum()) * (1 + gamma(8)))


def _defect(basis: Tensor) -> Tensor:
    """||basis' basis - I||, rounded up."""
    identity = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
    products = 2 * product_error(basis.shape[0], basis.dtype) * norm_up(basis, 2) ** 2
    return sums_up(basis.mT @ basis - identity) + products + gamma(4)
