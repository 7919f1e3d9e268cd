"""Rounding errors of float64 arithmetic, as proven bounds.

Every norm is evaluated in float64 on numbers brought by powers of two to a largest entry between 2^-16 and 2^16, so
nothing overflows and what underflows is far below one rounding error of the result: the `+ 2` in the depths below
covers it. Only two facts about the linear-algebra library are used: an inner product of length n carries at most n
rounding errors in whatever order it is summed, and elementary functions are within two units in the last place.
Factorisations (SVD, Cholesky) are never trusted: their results are multiplied out again and the residual is bounded.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.rounding.logarithm import log_up
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8, UNIT


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
    # As pairs of reals: torch's norm of complex numbers takes a root for each of them first.
    parts = torch.view_as_real(x.resolve_conj()).flatten(-2) if x.is_complex() else x
    size = math.prod(parts.shape[-axes:])
    return torch.linalg.vector_norm(parts, dim=tuple(range(-axes, 0))) * (1 + gamma(size + 4))


def sums_up(x: Inexact[Tensor, "... rows cols"]) -> Float[Tensor, "..."]:
    """Largest absolute row or column sum, rounded up: bounds the norm of any matrix, by (||x||_1 ||x||_inf)^(1/2).

    Of a Hermitian matrix either would do; what rounding leaves of one is not quite Hermitian.
    """
    size = x.abs()
    largest = torch.maximum(size.sum(-1).amax(-1), size.sum(-2).amax(-1))
    return largest * (1 + gamma(max(x.shape[-2:]) + 4))


def normalize(x: Inexact[Tensor, "batch *rest"], what: object) -> tuple[Tensor, Float[Tensor, " batch"]]:
    """x / 2^e with its largest entry within 2^-16 and 2^16 for each batch entry, and e; exact. Refuses NaN and
    infinities.

    Moderate numbers are left alone, which saves a copy; others are brought to a largest entry in [1/2, 1). The scaling
    multiplies twice by half the exponent, so that subnormal weights are scaled without overflow.
    """
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    largest = torch.linalg.vector_norm(parts.detach().flatten(1), ord=math.inf, dim=1)
    if not bool(torch.isfinite(largest).all()):
        raise NonFiniteError(f"{what} has NaN or infinite weights, so it has no norm; repair the weights first.")
    exponent = torch.frexp(largest).exponent.to(torch.float64)
    if bool((exponent.abs() <= 16).all()):
        return x, torch.zeros_like(exponent)
    half = torch.floor(exponent / 2)
    tail = (-1,) + (1,) * (x.ndim - 1)
    return x * torch.exp2(-half).view(tail) * torch.exp2(half - exponent).view(tail), exponent


def inverse_scale(size: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """The power of two that brings a number into [1/2, 1); 1 for zero."""
    return torch.ldexp(torch.ones_like(size), -torch.frexp(size).exponent)


def round_up(value: Float[Tensor, "*b"], roundings: int) -> Float[Tensor, "*b"]:
    """An upper bound of a number >= 0 that took this many roundings, none of which cancels; exact at 0."""
    # Each rounding counts as two units in the last place, for elementary functions are off by as many.
    return value * (1 + (roundings + 2) * ROUNDINGS_4)


def round_down(value: Float[Tensor, "*b"], roundings: int) -> Float[Tensor, "*b"]:
    """A lower bound of a number >= 0 that took this many roundings, none of which cancels; exact at 0."""
    return value * (1 - (roundings + 2) * ROUNDINGS_4)


def undo_squarings(
    size: Float[Tensor, "*b"], units: Sequence[Float[Tensor, "*b"]], errors: Sequence[float | Tensor]
) -> Float[Tensor, "*b"]:
    """log of a bound of s_0 from a bound of s_n, where s_k = r_k / units[k] and r_k^2 <= s_(k+1) + errors[k].

    Units are powers of two with r_k <= 1, so nothing over- or underflows. Zero stays zero: it is squared without error.
    A root halves the relative error of what is under it, so two roundings for each of the steps are four in all.
    """
    dead = size.detach() == 0
    for unit, error in zip(reversed(units), reversed(errors), strict=True):
        size = (size + error).sqrt() / unit
    return log_up((size * (1 + ROUNDINGS_8)).masked_fill(dead, 0.0))
