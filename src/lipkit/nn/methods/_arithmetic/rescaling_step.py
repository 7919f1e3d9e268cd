"""One step of rescaling as a single function: few launches, and one product backward instead of two."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit._compilers import needs_plain_operations
from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative
from lipkit.nn.methods._arithmetic.filter_gram import (
    TINY,
    all_shifts,
    every_tap,
    in_enough_digits,
    launches_count,
    with_rounding,
)
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.rounding.slacks import ROUNDINGS_128

# Channels with smaller sums count as zero. `TINY` is less than a unit of the last digit of all others, and the cube of
# their inverse root, which derivatives need, does not overflow. With a divisor of at least `LEAST` derivatives in the
# free numbers are at most 2^98 times those in the weights in float32.
_LEAST = {torch.float32: 2.0**-76, torch.float64: 2.0**-600}


def worth_it(tall: Float[Tensor, "groups rows cols *taps"]) -> bool:
    """Whether `one_step` is faster than the majorant from half of the shifts: for matrices, or if launches count.

    It is not to be used where transforms are at work that cannot differentiate it.
    """
    taps = math.prod(tall.shape[3:])
    return (taps == 1 or launches_count(tall)) and not needs_plain_operations()


def one_step(tall: Float[Tensor, "groups rows cols *taps"], room: float) -> Float[Tensor, "groups rows cols *taps"]:
    """W R r with R_i = T_i^(-1/2), T the numbers of `majorant` for one step, r = `room`.

    With M the sums of W'W over pairs of taps with the same shift, T_i = sum |M_ij|. Backward T_i receives
    t_i = -1/2 R_i^3 (sum W G)_i, and W receives W [(t_i + t_j) sgn M_ij at all pairs]: one product, because M_ij at a
    shift and M_ji at the opposite one are the same number.

    Guarantee: that of `majorant`. Cost: n^2 m taps^2 products, as many backward, and in forward mode.
    """
    digits = in_enough_digits(tall)
    # Sums below `_LEAST` count as zero, so relative to the others underflow takes less than this; twice, because sums
    # are compared with it after they were enlarged.
    scale = scale_for_room(room) * (1 + 2 * TINY[digits] / _LEAST[tall.dtype])
    return _one_step(tall, scale, digits)


def scale_for_room(room: float) -> float:
    """The factor on T that turns T^(-1/2) into r T^(-1/2), a little larger for the rounding of this formula."""
    return (1 + ROUNDINGS_128) / room**2


def inverse_root(sums: Float64[Tensor, "*any"], dtype: torch.dtype) -> Float[Tensor, "*any"]:
    """T^(-1/2), rounded to `dtype`; 0 where T is so small that the numbers behind it vanished in `dtype`.

    Rounding to float32 enlarges a channel by a unit of its last digit, of which `shrink` has four to spare.
    """
    return torch.threshold(sums, _LEAST[dtype], math.inf).rsqrt().to(dtype)


def largest(tall: Float[Tensor, "groups rows cols *taps"], least: float = LEAST) -> Float[Tensor, "groups 1 1 *ones"]:
    """The largest entries of the blocks, or `least` if that is larger: what they are divided by, without gradient.

    Weights do not depend on the scale of a block, so neither do their derivatives of any order.
    """
    axes = tuple(range(1, tall.ndim))
    return torch.linalg.vector_norm(tall, math.inf, axes, keepdim=True).clamp(min=least)


def _forward(tall: Tensor, scale: float, digits: torch.dtype) -> Tensors:
    divisor = largest(tall)
    level = tall / divisor
    kernel = level.to(digits)
    correlations = all_shifts(every_tap(kernel), kernel.shape)
    sums = torch.linalg.vector_norm(correlations.flatten(2), 1, 2, keepdim=True, dtype=torch.float64)
    factor = over_taps(inverse_root(with_rounding(sums, kernel, scale=scale), tall.dtype), tall)
    return level * factor, factor, level, correlations.sgn().to(tall.dtype), divisor


def _backward(inputs: tuple[Tensor, float, torch.dtype], outputs: Tensors, gradients: Gradients) -> Gradients:
    _, factor, level, signs, divisor = outputs
    out, by_factor, by_level, *_ = gradients
    if out is None:
        # Only where derivatives of derivatives need the others alone.
        out = torch.zeros_like(level)
    axes = tuple(range(3, level.ndim))
    inner = (out * level).sum((1, *axes), keepdim=True)
    inner = inner if by_factor is None else inner + by_factor
    sums = inner * factor**3
    pairs = _spread_shifts(signs * (sums.transpose(1, 2) + sums), level.shape)
    every = every_tap(level)
    # With beta = 0 the first argument is not read: the product and its factor in one launch.
    moved = torch.baddbmm(every, every, pairs.mT, beta=0, alpha=-0.5 * inputs[1])
    turned = moved.view(level.shape).flip(axes)
    found = torch.addcmul(turned, out, factor)
    found = found if by_level is None else found + by_level
    return (found / divisor,)


def _jvp(inputs: tuple[Tensor, float, torch.dtype], outputs: Tensors, tangents: Tensors) -> Gradients:
    _, factor, level, signs, divisor = outputs
    change = tangents[0] / divisor
    both = all_shifts(every_tap(level), level.shape, every_tap(change))
    sums = (signs * both).flatten(2).sum(2, dtype=torch.float64)
    moved = (over_taps(sums, level) * factor**3 * (-0.5 * inputs[1])).to(level.dtype)
    return torch.addcmul(change * factor, level, moved), moved, change, None, None


_one_step = with_derivative(_forward, _backward, _jvp, constants=2)


def over_taps(numbers: Float[Tensor, "groups cols *one"], tall: Tensor) -> Float[Tensor, "groups 1 cols *ones"]:
    """One number for each column, to be multiplied with a kernel."""
    return numbers.reshape(tall.shape[0], 1, tall.shape[2], *(1,) * (tall.ndim - 3))


def _spread_shifts(
    pairs: Float[Tensor, "groups cols cols *shifts"], shape: torch.Size
) -> Float[Tensor, "groups many many"]:
    """The value at shift b - a for all pairs of taps (a, b), as a matrix; rows in the opposite order of taps.

    Then b - a counts up with both, and the windows of every axis of shifts are the rows: nothing is gathered.
    """
    groups, _, cols, *taps = shape
    rank = len(taps)
    windows = pairs
    for i, t in enumerate(taps, 3):
        windows = windows.unfold(i, t, 1)
    order = (0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
    many = cols * math.prod(taps)
    return windows.permute(order).reshape(groups, many, many)
