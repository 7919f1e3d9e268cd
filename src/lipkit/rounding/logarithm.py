"""Numbers >= 0 kept as float64 logarithms, and rounded to a side: +1 never below, -1 never above, 0 to nearest."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.kind import Kind
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8, ROUNDINGS_8192, ULP

# A float64 logarithm, exponential or sum is within one unit in the last place, 2^-52 relative; twice that is safe.
_ULPS = ROUNDINGS_4
_FINITE = torch.finfo(torch.float64).max
# Between these logarithms exp is a normal float64, so the relative error above holds.
_TINY, _HUGE = -707.0, 709.78


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


def widen_log(log: Float[Tensor, "*b"], error: Float[Tensor, "*b"], kind: Kind) -> Float[Tensor, "*b"]:
    """log(exp(log) + error) rounded up for UPPER, log(exp(log) - error) rounded down for LOWER; never overflows.

    For logarithms of at most a thousand in size, and no gradients.
    """
    log_error = error.log()
    if kind is Kind.LOWER:
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
