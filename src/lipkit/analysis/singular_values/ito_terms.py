"""How a function of the singular values drifts and scatters while its matrix moves by drift and noise (Ito)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.decomposition import check_direction, check_matrix
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

# Values closer to each other or to zero than this share of the largest one count as equal, or as zero; see `decompose`.
_SAME = 2.0**-26
# Derivatives at values that close agree to this share if they agree at all.
_AGREE = 2.0**-20

Functional = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class ItoTerms:
    """d phi = (transport + curvature) dt + sum_j diffusion_j dB_j, and the value of phi, at one matrix.

    `transport` is what the drift of the matrix moves, `curvature` what its noise adds to the mean by the second
    derivatives; it is what an ordinary chain rule forgets.
    """

    value: float
    transport: float
    curvature: float
    diffusion: Float64[Tensor, " noises"]

    @property
    def drift(self) -> float:
        """The change of the mean in a unit of time."""
        return self.transport + self.curvature

    @property
    def variance(self) -> float:
        """The variance that a unit of time adds."""
        return float(self.diffusion.square().sum())


def ito_terms(
    matrix: Float[Tensor, "m n"],
    functional: Functional,
    drift: Float[Tensor, "m n"],
    noises: Float[Tensor, "noises m n"],
) -> ItoTerms:
    """Drift and diffusion of phi(sigma_1, ..., sigma_p) of a matrix that moves by dA = G dt + sum_j D_j dB_j.

    With Y = U'D_j V, phi_k and phi_kl the derivatives of phi, and the matrix m x n, the parts are

        transport  = sum_k phi_k (U'G V)_kk,      diffusion_j = sum_k phi_k Y_kk,
        curvature  = 1/2 sum_j ( sum_kl phi_kl Y_kk Y_ll + sum_k phi_k |what U, V leave of D_j v_k and D_j'u_k|^2 / s_k
                     + sum_{k<i} (phi_k - phi_i) / (s_k - s_i) (Y_ki + Y_ik)^2 / 2
                               + (phi_k + phi_i) / (s_k + s_i) (Y_ki - Y_ik)^2 / 2 ).

    A function that treats two equal values alike is smooth there, so quotients become their limits; one that is even in
    a value may be taken where it is zero. Anything else is refused, because it has no second derivative there.
    Plain SGD with M gradients g_i of samples has D_i = (rate / (M (M - 1)))^(1/2) (g_i - mean g) and a step that lasts
    its rate: log sigma_1 then has the profiler's mu + kappa - lambda^2 / 2 and lambda.

    Guarantee: ESTIMATE, in float64. Cost: one decomposition, three products with each D_j, and p^3 for phi_kl.
    Reference: Luo 2025, (3.1) and (3.2), which name it; Lewis and Sendov 2001 for quotients, of eigenvalues.

    Args:
        matrix: A, real.
        functional: phi, a function in torch of all p = min(m, n) values, the largest first, that torch can
            differentiate twice: `torch.sum` (the nuclear norm), `spectral_entropy`, `condition_number`,
            `spectral_gap`, `log_spectral_norm`, or your own.
        drift: G.
        noises: D_1, D_2, ..., the columns of the diffusion coefficient as matrices.
    """
    matrix = check_matrix("A", matrix)
    along = check_direction("drift", drift, matrix)
    moved = noises.detach().to(torch.float64)
    if moved.shape[1:] != matrix.shape:
        raise ShapeError(f"Noises are matrices of the shape {tuple(matrix.shape)}, got {tuple(noises.shape)}.")
    if not bool(torch.isfinite(moved).all()):
        raise NonFiniteError("Some noises are NaN or infinite; repair them first.")
    left, values, right_t = torch.linalg.svd(matrix, full_matrices=False)
    if not float(values[0]) > 0:
        raise ArgumentError(
            "The matrix is zero, where no function of singular values has Ito terms; move away from it."
        )
    value, first, second = _derivatives(functional, values)
    _refuse_kinks(values, first, second)
    differences, sums, single = _quotients(values, first, second)
    y = left.mT @ moved @ right_t.mT
    diagonal = y.diagonal(dim1=1, dim2=2)
    curved = ((diagonal @ second) * diagonal).sum()
    # Every pair of values is here twice.
    curved = curved + (differences * (y + y.mT).square() + sums * (y - y.mT).square()).sum() / 4
    for rows, part in ((moved @ right_t.mT, left @ y), (moved.mT @ left, right_t.mT @ y.mT)):
        curved = curved + ((rows - part).square().sum(1) @ single).sum()
    transport = (first * (left.mT @ along @ right_t.mT).diagonal()).sum()
    return ItoTerms(value, float(transport), float(curved / 2), diagonal @ first)


def spectral_entropy(values: Float[Tensor, " count"]) -> Float[Tensor, ""]:
    """-sum_i p_i log p_i with p_i = s_i^2 / sum s^2: 0 for one value, log count if all are equal; exp is a rank."""
    return torch.special.entr(values.square() / values.square().sum()).sum()


def condition_number(values: Float[Tensor, " count"]) -> Float[Tensor, ""]:
    """s_1 / s_p, the largest over the smallest."""
    return values[0] / values[-1]


def spectral_gap(values: Float[Tensor, " count"]) -> Float[Tensor, ""]:
    """s_1 - s_2, of two values at least."""
    if len(values) < 2:
        raise ArgumentError("A gap needs two singular values, and a matrix with one row or column has one.")
    return values[0] - values[1]


def log_spectral_norm(values: Float[Tensor, " count"]) -> Float[Tensor, ""]:
    """log s_1, whose sum over the layers of a chain is log K."""
    return values[0].log()


def _derivatives(functional: Functional, values: Tensor) -> tuple[float, Tensor, Tensor]:
    """phi, its gradient and its matrix of second derivatives."""
    with torch.enable_grad():
        at = values.clone().requires_grad_()
        found = functional(at)
        if not isinstance(found, Tensor) or found.ndim or not found.is_floating_point():
            raise ArgumentError("A functional takes the singular values and returns one real number as a tensor.")
        second = torch.autograd.functional.hessian(functional, values.clone())
        first = torch.zeros_like(values)
        if found.requires_grad:
            (seen,) = torch.autograd.grad(found, at, allow_unused=True)
            first = first if seen is None else seen
    assert isinstance(second, Tensor), "one tensor of values has one matrix of second derivatives"
    if not all(bool(torch.isfinite(part).all()) for part in (found, first, second)):
        raise ArgumentError(
            f"The functional or a derivative of it is not finite at the singular values {values.tolist()}, so it has "
            "no Ito terms there; a zero among them may be the reason."
        )
    return float(found.detach()), first.to(torch.float64), second.to(torch.float64)


def _refuse_kinks(values: Tensor, first: Tensor, second: Tensor) -> None:
    """Refuse equal values that are not treated alike, and zeros in which the functional is not even."""
    least = _SAME * float(values[0])
    # The gradient may be zero where the function is largest, as that of the entropy is; then its change has a scale.
    slope = _AGREE * float(first.abs().max() + values[0] * second.abs().max())
    bend = slope / float(values[0])
    for i in range(len(values)):
        others = [j for j in range(len(values)) if j != i]
        if float(values[i]) <= least and (abs(float(first[i])) > slope or bool((second[i, others].abs() > bend).any())):
            raise ArgumentError(
                f"sigma_{i} = {float(values[i]):g} is zero next to sigma_0 = {float(values[0]):g}, where the "
                "functional has a kink; it must not depend on this value."
            )
        k = i + 1
        if k == len(values) or float(values[i] - values[k]) > least:
            continue
        swapped = [k if j == i else i if j == k else j for j in range(len(values))]
        alike = bool((first - first[swapped]).abs().max() <= slope)
        if not alike or bool((second - second[swapped][:, swapped]).abs().max() > bend):
            raise ArgumentError(
                f"sigma_{i} = sigma_{k} = {float(values[i]):g} is repeated, and the functional tells the two apart, so "
                "it has no second derivative there; take one that treats equal values alike."
            )


def _quotients(values: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The quotients of differences and of sums, and phi_k / s_k, with limits where values are equal or zero."""
    least = _SAME * values[0]
    own = second.diagonal()
    apart, beside = values[:, None] - values, values[:, None] + values
    near, small = apart.abs() <= least, beside <= least
    differences = torch.where(near, own[:, None] - second, (first[:, None] - first) / apart.masked_fill(near, 1.0))
    sums = torch.where(small, own[:, None], (first[:, None] + first) / beside.masked_fill(small, 1.0))
    zero = values <= least
    single = torch.where(zero, own, first / values.masked_fill(zero, 1.0))
    return differences.fill_diagonal_(0.0), sums, single
