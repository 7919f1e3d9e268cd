"""How many directions a matrix, or the derivative of a module, really has."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def stable_rank(of: Float[Tensor, "*batch rows cols"] | nn.Module, at: Float[Tensor, "..."] | None = None) -> Tensor:
    """||J||_F^2 / ||J||_2^2 = sum of (sigma_i / sigma_1)^2, at most the rank; of a matrix, or of a Jacobian at a point.

    n for an orthogonal n x n matrix, 1 for one of rank one, about n/4 for independent entries of mean zero: layers with
    a small one send all inputs along a few directions. A matrix of zeros has 0.
    Guarantee: none (an SVD in the type of the numbers); a figure to watch, next to sigma_1. Gradient: by autograd.
    Cost: one SVD, and for a module one Jacobian.
    Reference: Rudelson and Vershynin 2007; for convex networks Béthune 2024, section 7.1.

    Args:
        of: One matrix or several, or a module that takes a batch.
        at: The point at which a module is differentiated, without batch axis.
    """
    if isinstance(of, nn.Module):
        if at is None:
            raise ArgumentError(
                f"The stable rank of {type(of).__name__} is that of its Jacobian at a point; give `at`."
            )
        jacobian = torch.func.jacrev(lambda x: of(x[None])[0])(at)
        return stable_rank(jacobian.reshape(-1, at.numel()))
    if at is not None:
        raise ArgumentError("A matrix has the same stable rank at every point; leave `at` out.")
    if of.ndim < 2:
        raise ShapeError(f"A stable rank needs a matrix, got shape {tuple(of.shape)}.")
    if not bool(of.detach().isfinite().all()):
        raise NonFiniteError("The matrix has NaN or infinite entries, so it has no stable rank.")
    values = torch.linalg.svdvals(of)
    # No quotient of zeros.
    largest = values[..., :1]
    return (values / torch.where(largest > 0, largest, 1.0)).square().sum(-1)
