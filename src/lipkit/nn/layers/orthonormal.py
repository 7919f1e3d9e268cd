"""Plain weights with orthonormal rows or columns, for optimizers that keep them so: their start and their end."""

from collections.abc import Iterable

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.methods.bjorck import Bjorck

# Size of the noise on the identity.
_NOISE = 0.2
_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_NAMES = "float32, float64, complex64 and complex128"


def near_identity(size: int, dtype: torch.dtype = torch.float32) -> Inexact[Tensor, "size size"]:
    """An orthogonal matrix near the identity: that nearest to I plus noise of norm about 0.2; unitary if complex."""
    if size < 1:
        raise ArgumentError(f"The size of a matrix is at least 1, got {size}.")
    if dtype not in _DTYPES:
        raise ArgumentError(f"near_identity works in {_NAMES}, got {dtype}; convert what it gives.")
    noise = torch.randn(size, size, dtype=dtype) * (_NOISE / (2 * size**0.5))
    return Bjorck().matrix((torch.eye(size, dtype=dtype) + noise)[None])[0]


@torch.no_grad()
def orthonormal_(weights: Iterable[Tensor]) -> None:
    """Each matrix, or kernel with one tap, replaced in place by the one with orthonormal rows or columns nearest to it.

        W <- U V' of W = U S V', by `Bjorck`: averages of orthogonal weights are not orthogonal, this pulls them back.

    Guarantee: that of `Bjorck`: norm at most 1 as stored, and orthonormal up to rounding unless a singular value is far
    below the others or all are tiny, which averages over late steps are not. Cost: 8 Björck steps for each matrix.

    Args:
        weights: Matrices, or kernels with one tap, changed in place.
    """
    if isinstance(weights, Tensor):
        raise ArgumentError(f"orthonormal_ takes a list of weights, got one {tuple(weights.shape)}; wrap it in [].")
    for weight in weights:
        if weight.ndim < 2 or any(n != 1 for n in weight.shape[2:]) or not weight.numel():
            raise ShapeError(
                f"orthonormal_ takes matrices and kernels with one tap, got shape {tuple(weight.shape)}; other kernels "
                "are constrained by a method, as in lipkit.nn.Conv2d."
            )
        if weight.dtype not in _DTYPES:
            raise ArgumentError(f"orthonormal_ works in {_NAMES}, got {weight.dtype}; convert the weight.")
        weight.copy_(Bjorck().matrix(weight.flatten(1)[None])[0].reshape(weight.shape))
