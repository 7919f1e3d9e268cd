"""The nearest orthonormal matrix, by products as long as they suffice."""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError

# When the polar factor is near enough for a fixed number of steps, each of which squares the error.
_NEAR = 2.0**-6
# Steps before that: from the smallest singular value that float64 can tell from zero, each times 3/2, it takes 89.
_MOST = 100
# Products may be off by this many units of the last digit: their sums are as long as the matrix.
ROUNDINGS = 64


def normalised_defect(matrix: Inexact[Tensor, "*batch long short"]) -> Float[Tensor, "*batch"]:
    """||W'W - I||_F / n^(1/2). Cost: one product."""
    return torch.linalg.matrix_norm(defect(matrix)) / max(1, matrix.shape[-1]) ** 0.5


def defect(matrix: Inexact[Tensor, "*batch long short"]) -> Inexact[Tensor, "*batch short short"]:
    """W'W - I. Cost: one product."""
    return matrix.mH @ matrix - torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def polar_factor(moved: Inexact[Tensor, "*batch long short"], steps: int) -> Inexact[Tensor, "*batch long short"]:
    """The polar factor: Björck steps until all ||I - Y'Y|| are below 2^-6, and `steps` more, which square them.

    Singular values that are zero stay so. Cost: two products a step.
    """
    gram = moved.mH @ moved
    square = gram.abs().sum(-1).amax(-1)[..., None, None]
    # From a norm of 3^(1/2) on a step leads beyond the other end of the range.
    scale = torch.where(square > 3, square, 1.0)
    moved, gram = moved / scale.sqrt(), gram / scale
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    for _ in range(_MOST):
        # NaN never comes near: the comparison ends the loop.
        if not float(torch.linalg.matrix_norm(identity - gram).amax()) > _NEAR:
            break
        moved = 1.5 * moved - 0.5 * moved @ gram
        gram = moved.mH @ moved
    for _ in range(steps):
        moved = 1.5 * moved - 0.5 * moved @ (moved.mH @ moved)
    return moved


def nearest_orthonormal(matrices: Inexact[Tensor, "batch long short"]) -> Inexact[Tensor, "batch long short"]:
    """U V' of every U S V', up to rounding; one of several where singular values are zero.

    Cost: two products for each Björck step and one to check; a decomposition in float64 for those that the steps do
    not reach.
    """
    if not bool(matrices.isfinite().all()):
        raise NonFiniteError("A weight is NaN or infinite, so no orthonormal one is near it; lower the learning rate.")
    found = polar_factor(matrices, 3)
    off = ~(normalised_defect(found) <= ROUNDINGS * torch.finfo(found.dtype).eps)
    for i in off.nonzero().flatten().tolist():
        wide = matrices[i].to(torch.promote_types(matrices.dtype, torch.float64))
        left, _, right = torch.linalg.svd(wide, full_matrices=False)
        found[i] = (left @ right).to(found.dtype)
    return found
