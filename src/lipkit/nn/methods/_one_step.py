"""One step of rescaling as a single function: few launches, and one product backward instead of two."""

import math
from typing import Any, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

from lipkit.nn.methods._filter_gram import all_shifts, every_tap, in_enough_digits, launches_count, with_rounding
from lipkit.nn.methods._transforms import plainly


def worth_it(tall: Float[Tensor, "groups rows cols *taps"]) -> bool:
    """Whether `one_step` is faster than the majorant from half of the shifts: for matrices, or if launches count.

    It is not to be used where transforms are at work that cannot differentiate it.
    """
    taps = math.prod(tall.shape[3:])
    return (taps == 1 or launches_count(tall)) and not plainly()


def one_step(tall: Float[Tensor, "groups rows cols *taps"], room: float) -> Float[Tensor, "groups rows cols *taps"]:
    """W R r with R_i = T_i^(-1/2), T the numbers of `majorant` for one step and entries of at most one, r = `room`.

    With V the channels at all taps and M the sums of V V' over pairs of taps with the same shift, T_i = sum |M_ij|.
    Backward T_i receives t_i = -1/2 R_i^3 (sum W G)_i, and V receives [(t_i + t_j) sgn M_ij at all pairs] V: one
    product, because M_ij at a shift and M_ji at the opposite one are the same number.

    Guarantee: that of `majorant`. Cost: n^2 m taps^2 products, as many backward, and in forward mode.
    """
    wide = in_enough_digits(tall) != tall.dtype
    return (_OneStep if torch.compiler.is_compiling() else _ForwardOneStep).apply(tall, room, wide)[0]


def inverse_root(sums: Float64[Tensor, "groups n"], dtype: torch.dtype, room: float) -> Float64[Tensor, "groups n"]:
    """r T^(-1/2), a little smaller; 0 where T is so small that the numbers behind it vanished in `dtype`."""
    least = 2.0**-90 if dtype == torch.float32 else 2.0**-900
    return functional.threshold(sums, least, math.inf).rsqrt() * (room * (1 - 2.0**-48))


class _OneStep(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tall: Tensor, room: float, wide: bool) -> tuple[Tensor, Tensor, Tensor]:
        kernel = tall.to(torch.float64) if wide else tall
        correlations = all_shifts(every_tap(kernel), kernel.shape)
        sums = correlations.abs().sum((1, -1), dtype=torch.float64)
        factor = inverse_root(with_rounding(sums, kernel), tall.dtype, room)
        # Float64, like the factor: this rounds once.
        weight = (tall * over_taps(factor, tall)).to(tall.dtype)
        return weight, factor, correlations.sgn().to(tall.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, bool], output: tuple[Tensor, Tensor, Tensor]) -> None:
        tall, ctx.room, _ = inputs
        # The factor is an output because derivatives of the derivative go through it; those of signs are zero.
        _, factor, signs = output
        ctx.mark_non_differentiable(signs)
        # Zeros in place of absent gradients would be as large as all shifts together.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tall, factor, signs)
        ctx.save_for_forward(tall, factor, signs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        tall, factor, signs = ctx.saved_tensors
        out, more, _ = gradients
        if out is None:
            # Only where derivatives of derivatives need the factor alone.
            out = torch.zeros_like(tall)
        inner = (out * tall).sum((1, *range(3, tall.ndim)))
        inner = inner if more is None else inner + more
        sums = (inner * _slope(factor, ctx.room)).to(tall.dtype)
        pairs = signs * (sums[:, :, None] + sums[:, None, :])[:, None]
        moved = _spread(pairs, tall.shape) @ every_tap(tall)
        groups, rows, cols, *taps = tall.shape
        axes = range(1, 1 + len(taps))
        turned = moved.view(groups, *taps, cols, rows).flip(tuple(axes)).permute(0, -1, -2, *axes)
        return torch.addcmul(turned, out, over_taps(factor.to(tall.dtype), tall)), None, None


@final
class _ForwardOneStep(_OneStep):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, None]:
        tall, factor, signs = ctx.saved_tensors
        change = tangents[0]
        both = all_shifts(every_tap(tall), tall.shape, every_tap(change))
        sums = (signs * both).sum((1, -1), dtype=torch.float64)
        moved = sums * _slope(factor, ctx.room)
        first = change * over_taps(factor, tall)
        return (first + tall * over_taps(moved, tall)).to(tall.dtype), moved, None


def _slope(factor: Float64[Tensor, "groups cols"], room: float) -> Float64[Tensor, "groups cols"]:
    """The derivative of r T^(-1/2) by T in terms of itself; 0 where it is 0."""
    return factor**3 * (-0.5 / room**2)


def over_taps(numbers: Float[Tensor, "groups cols"], tall: Tensor) -> Tensor:
    """One number for each column, to be multiplied with a kernel."""
    return numbers[(slice(None), None, slice(None), *(None,) * (tall.ndim - 3))]


def _spread(pairs: Float[Tensor, "groups shifts cols cols"], shape: torch.Size) -> Tensor:
    """What stands at shift b - a, at all pairs of taps (a, b); rows in the opposite order of taps.

    Then b - a counts up with both, and the windows of every axis of shifts are the rows: nothing is gathered.
    """
    groups, _, cols, *taps = shape
    rank = len(taps)
    windows = pairs.view(groups, *[2 * t - 1 for t in taps], cols, cols)
    for i, t in enumerate(taps):
        windows = windows.unfold(1 + i, t, 1)
    axes = range(1, 1 + rank)
    order = (0, *axes, 1 + rank, *(i + 2 + rank for i in axes), 2 + rank)
    return windows.permute(order).reshape(groups, math.prod(taps) * cols, -1)
