"""Rounding errors of float64 arithmetic, as proven bounds.

Every norm is evaluated in float64 on numbers rescaled by powers of two to a largest entry in [1/2, 1), so nothing overflows and what
underflows (below 2^-1022 of the largest entry) is far below one rounding error: the `+ 2` in the depths below covers it.
Only two facts about the linear-algebra library are used: an inner product of length n carries at most n rounding errors in
whatever order it is summed, and elementary functions are within two units in the last place. Factorisations (SVD,
Cholesky) are never trusted: their results are multiplied out again and the residual is bounded.
"""

import math

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError

UNIT = 2.0**-53


def gamma(depth: int) -> float:
    """The classical n u / (1 - n u), with one more rounding for evaluating itself."""
    x = (depth + 1) * UNIT
    return x / (1 - x)


def product_error(depth: int, dtype: torch.dtype) -> float:
    """c with |fl(A B) - A B| <= c |A| |B| entrywise, for inner products of length `depth`.

    Complex: the real and the imaginary part are each a real inner product of length 2 depth, bounded through
    Cauchy-Schwarz by gamma |A| |B|, together sqrt(2) gamma.
    """
    return math.sqrt(2) * gamma(2 * depth + 4) if dtype.is_complex else gamma(depth + 2)


def norm_up(x: Inexact[Tensor, "..."], axes: int) -> Float[Tensor, "..."]:
    """Euclidean norm over the last `axes` axes, rounded up."""
    dims = tuple(range(-axes, 0))
    size = math.prod(x.shape[-axes:]) * (2 if x.is_complex() else 1)
    return torch.linalg.vector_norm(x, dim=dims) * (1 + gamma(size + 4))


def row_sum_up(x: Inexact[Tensor, "... rows cols"]) -> Float[Tensor, "..."]:
    """Largest absolute row sum, rounded up: an upper bound of the norm of a Hermitian matrix."""
    return x.abs().sum(-1).amax(-1) * (1 + gamma(x.shape[-1] + 4))


def normalised(x: Inexact[Tensor, "batch *rest"], what: object) -> tuple[Tensor, Float[Tensor, " batch"]]:
    """x / 2^e with its largest entry in [1/2, 1) for each batch entry, and e; exact. Refuses NaN and infinities.

    The scaling multiplies twice by half the exponent, so that subnormal weights are scaled without overflow.
    """
    parts = torch.view_as_real(x) if x.is_complex() else x
    largest = parts.detach().abs().flatten(1).amax(1) if x.numel() else x.new_zeros(x.shape[0], dtype=torch.float64)
    if not bool(torch.isfinite(largest).all()):
        raise NonFiniteError(f"{what} has NaN or infinite weights, so it has no norm; repair the weights first.")
    exponent = torch.frexp(largest).exponent.to(torch.float64)
    half = torch.floor(exponent / 2)
    tail = (-1,) + (1,) * (x.ndim - 1)
    return x * torch.exp2(-half).view(tail) * torch.exp2(half - exponent).view(tail), exponent


def log_up(value: Float[Tensor, "*b"], exponent: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """log(value 2^exponent), rounded up; -inf for 0."""
    return _moved(value, exponent, 2.0**-51)


def log_down(value: Float[Tensor, "*b"], exponent: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """log(value 2^exponent), rounded down; -inf for what is not positive."""
    return _moved(value.clamp(min=0), exponent, -(2.0**-51))


def _moved(value: Tensor, exponent: Tensor, ulps: float) -> Tensor:
    log = value.log()
    scale = exponent * math.log(2)
    size = torch.where(torch.isfinite(log), log.detach().abs(), 0.0) + scale.abs() + 1
    return log + scale + ulps * size
