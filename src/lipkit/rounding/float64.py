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
from jaxtyping import Float, Float64, Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8, ROUNDINGS_8192, ULP, UNIT

# A float64 logarithm, exponential or sum is within one unit in the last place, 2^-52 relative; twice that is safe.
_ULPS = ROUNDINGS_4
_FINITE = torch.finfo(torch.float64).max
# Between these logarithms exp is a normal float64, so the relative error above holds.
_TINY, _HUGE = -707.0, 709.78
# Two steps between subnormal numbers: among those a rounding is no small share, it is a step to the next one.
_SUBNORMAL = 2.0**-1073


def log_of(value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log(value), rounded to nearest, with derivative 0 at 0."""
    # At 0 a norm has a kink, of which 0 is a subgradient; 1/0 would make every gradient NaN.
    zero = value == 0
    return torch.where(zero, 1.0, value).log().masked_fill(zero, -math.inf)


def round_log(log: Float[Tensor, "..."], side: float) -> Float[Tensor, "..."]:
    """A logarithm moved past its own rounding error to a side; the derivative stays 1."""
    # Infinities stay what they are: no finite number moves them.
    size = log.detach().clamp(-_FINITE, _FINITE).abs()
    return torch.add(log, size, alpha=side * _ULPS)


def log_up(value: Float[Tensor, "*b"], exponent: Float[Tensor, "*b"] | None = None) -> Float[Tensor, "*b"]:
    """log(value 2^exponent), rounded up; exact at 0 and at 1, with derivative 0 at 0."""
    return _rounded_log(value, exponent, 1.0)


def log_down(value: Float[Tensor, "*b"], exponent: Float[Tensor, "*b"] | None = None) -> Float[Tensor, "*b"]:
    """log(value 2^exponent), rounded down; -inf for what is not positive."""
    return _rounded_log(value.clamp(min=0), exponent, -1.0)


def _rounded_log(value: Tensor, exponent: Tensor | None, side: float) -> Tensor:
    log = log_of(value)
    # No logarithm of a float64 but that of zero is smaller; NaN stays NaN.
    size = log.detach().clamp(min=-1000.0).abs()
    if exponent is not None:
        scale = exponent * math.log(2)
        log, size = log + scale, size + scale.abs()
    # One unit more, for values near 1 that carry a rounding; log 1 = 0 itself is exact.
    return torch.add(log, size + (size != 0), alpha=side * ROUNDINGS_8)


def log_product(log_a: Float[Tensor, "..."], log_b: Float[Tensor, "..."], side: float) -> Float[Tensor, "..."]:
    """log(a b), rounded to a side."""
    return round_log(log_a + log_b, side)


def log_sum(log_a: Float[Tensor, "..."], log_b: Float[Tensor, "..."], side: float) -> Float[Tensor, "..."]:
    """log(a + b), rounded to a side."""
    # Where a = b = 0 the derivative of logaddexp is NaN, so it gets another b there.
    dead = (log_a.detach() == -math.inf) & (log_b.detach() == -math.inf)
    total = torch.logaddexp(log_a, log_b.masked_fill(dead, 0.0)).masked_fill(dead, -math.inf)
    # logaddexp is accurate to a few ulps of 1 besides its ulp of the result.
    return round_log(total + side * 2 * _ULPS, side)


def widen_log(log: Float[Tensor, "*b"], error: Float[Tensor, "*b"], side: float) -> Float[Tensor, "*b"]:
    """log(exp(log) + error) rounded up for the side +1, log(exp(log) - error) rounded down for -1; never overflows.

    For logarithms of at most a thousand in size, and no gradients.
    """
    log_error = error.log()
    if side < 0:
        # If number and error are both zero, the error is all of the number.
        relative = ((log_error - log).exp() * (1 + ROUNDINGS_8192)).nan_to_num(nan=1.0)
        found, ulps = log + torch.log1p(-relative.clamp(max=1.0)), -ROUNDINGS_8
    else:
        found, ulps = torch.logaddexp(log, log_error), ROUNDINGS_8
    # Minus infinity stays what it is: no finite number moves it.
    return torch.add(found, found.clamp(min=-1e300).abs() + 1, alpha=ulps)


def log_norm_ratio(q: float, p: float, entries: int) -> float:
    """The log of the largest ||x||_q / ||x||_p over x of so many entries, max(0, 1/q - 1/p) log n, rounded up."""
    if p <= q:
        return 0.0
    # Reciprocals are off by 2^-53 each, which their difference keeps; the rest is relative.
    return (1 / q - 1 / p + ULP) * math.log(max(1, entries)) * (1 + ROUNDINGS_8)


def exp_of(log: Float[Tensor, "..."], side: float) -> Float[Tensor, "..."]:
    """exp(log), rounded to a side, and exact at 0 and -inf.

    Outside [1e-307, 1.79e308] a number rounded up stops at 1e-307 or becomes +inf, one rounded down 0 or 1.79e308.
    """
    fixed = log.detach()
    if side > 0:
        log = torch.where(fixed > -math.inf, log.clamp(min=_TINY), log)
    elif side < 0:
        log = log.clamp(max=_HUGE).masked_fill(fixed < _TINY, -math.inf)
    return log.exp() * (1.0 + (fixed != 0).to(torch.float64) * side * _ULPS)


def format_exp(log: float) -> str:
    """exp(log) to five digits; as a power of ten where float64 ends."""
    return f"{math.exp(log):.5g}" if log == -math.inf or _TINY < log < _HUGE else f"10^{log / math.log(10):.4f}"


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


def vector_norms(rows: Float64[Tensor, "rows length"], q: float) -> Float64[Tensor, " rows"]:
    """The l_q norm of every row of a matrix, rounded up."""
    # In units of the largest entry no power underflows to where it counts.
    unit = rows.abs().amax(1, keepdim=True).clamp(min=1e-300)
    norms = torch.linalg.vector_norm(rows / unit, ord=q, dim=1) * unit.squeeze(1)
    return torch.where(norms > 0, round_up(norms, 8 * rows.shape[1] + 64) + _SUBNORMAL, norms)
