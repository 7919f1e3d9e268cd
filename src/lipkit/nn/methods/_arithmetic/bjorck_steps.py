"""The steps of Björck's iteration, with their derivative."""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.core.precision import widest
from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative
from lipkit.nn.methods._arithmetic.safe_scaling import dot, largest, signs, sizes_of
from lipkit.nn.methods._isometry import last_step, room_of_step, step_factors


@final
@dataclass(frozen=True, eq=False)
class Start:
    """Where a short iteration starts: m = `unit`, W'W / m^2, and a divisor b^2 of the latter that is a constant."""

    unit: Inexact[Tensor, "batch 1 1"]
    gram: Inexact[Tensor, "batch cols cols"]
    square: Inexact[Tensor, "batch 1 1"]


def iterate(
    tall: Inexact[Tensor, "batch rows cols"], scales: tuple[float, ...], dtype: torch.dtype
) -> Inexact[Tensor, "batch rows cols"]:
    """Björck steps from c W / b, c in `scales`, b >= ||W||, and a last one with c = 1: norm at most 1 in `dtype`."""
    return _iterated(tall, room_of_step(tall, dtype), dtype, None, *scales)[0]


def iterate_shortly(
    tall: Inexact[Tensor, "batch rows cols"], start: Start, scales: tuple[float, ...], close: float, dtype: torch.dtype
) -> Inexact[Tensor, "batch rows cols"] | None:
    """Björck steps from c W / (m b), m and b from `start`; None if the last step does not begin near an isometry.

    Near means ||W'W - I||_F <= `close` < 1 there, by the Gram matrix in float64 that the step needs anyway. This proves
    what `iterate` has by construction: singular values of at most 3^(1/2) before the step, so norm at most 1 as stored.
    All of them end above 1 - `close`^2 / 2. The derivative of the last step is that at the isometry, off by `close`.
    """
    found, _, *others = _iterated(tall, room_of_step(tall, dtype), dtype, start, *scales)
    inner = others[-5]
    identity = torch.eye(inner.shape[-1], dtype=inner.dtype)
    distance = torch.linalg.vector_norm(inner.detach() - identity, dim=(-2, -1)).max()
    # Not `distance > close`: NaN is far.
    return found if bool(distance <= close) else None


def _forward(tall: Tensor, room: float, dtype: torch.dtype, start: Start | None, *scales: float) -> Tensors:
    unit = largest(tall) if start is None else start.unit
    level = tall / unit
    gram = torch.bmm(level.mH, level) if start is None else start.gram
    square, whole, rows = sizes_of(gram)
    square = square if start is None else start.square
    size = square.sqrt()
    found = level / size
    steps: list[Tensor] = []
    for scale in scales:
        linear, cubic = step_factors(scale)
        if steps:
            inner = torch.bmm(found.mH, found)
            after = torch.baddbmm(found, found, inner, beta=linear, alpha=cubic)
        else:
            inner = gram / square
            # Singular values near 1 become small here: the two summands almost cancel, so that is done on the Gram
            # matrix, before the product rounds. The first argument of that counts for nothing.
            identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
            shifted = torch.add(inner, identity, alpha=linear / cubic)
            after = torch.baddbmm(found, found, shifted, beta=0, alpha=cubic)
        steps += found, inner
        found = after
    wide = found.to(widest(found.dtype))
    inner = torch.bmm(wide.mH, wide)
    steps += found, inner.to(tall.dtype)
    return last_step(wide, inner, dtype, room), size, *steps, unit, square, whole, rows


def _pairs(inputs: tuple[Any, ...]) -> list[tuple[float, float]]:
    """The factors of all steps, the last included."""
    _, room, _, _, *scales = inputs
    return [*map(step_factors, scales), step_factors(1.0, room)]


def _backward(inputs: tuple[Any, ...], outputs: Tensors, gradients: Gradients) -> Gradients:
    _, size, *steps, unit, square, whole, rows = outputs
    pairs = _pairs(inputs)
    out, by_size, *by_steps = gradients[:-4]
    # None only where derivatives of derivatives need the others alone.
    out = torch.zeros_like(steps[0]) if out is None else out.to(steps[0].dtype)
    for i in reversed(range(len(pairs))):
        tall, inner = steps[2 * i : 2 * i + 2]
        by_tall, by_inner = by_steps[2 * i : 2 * i + 2]
        isometric = inputs[3] is not None and i == len(pairs) - 1
        out, more = _pull_back(tall, None if isometric else inner, pairs[i], out, by_inner)
        out = out if by_tall is None else out + by_tall
        if i == 0:
            # W / b moves by -W / b times dlog b, half of what its square does; `along` is what it receives there.
            along = torch.add(dot(out, tall), dot(more, inner), alpha=2)
            along = along if by_size is None else along - by_size * size
            more = torch.addcmul(more, along, _slope(inner, square, whole, rows), value=-0.5)
        out = torch.baddbmm(out, tall, more + more.mH)
    return (out / size / unit,)


def _jvp(inputs: tuple[Any, ...], outputs: Tensors, tangents: Tensors) -> Gradients:
    _, size, *steps, unit, square, whole, rows = outputs
    change = tangents[0] / unit / size
    half = torch.bmm(steps[0].mH, change)
    # The tangent of log b.
    growth = 0.5 * dot(_slope(steps[1], square, whole, rows), half + half.mH)
    change = change - steps[0] * growth
    moved: list[Tensor] = []
    for i, pair in enumerate(_pairs(inputs)):
        tall, inner = steps[2 * i : 2 * i + 2]
        after, both = _push_forward(tall, inner, pair, change)
        moved += change, both
        change = after
    return change.to(inputs[2]), size * growth, *moved, None, None, None, None


_iterated = with_derivative(_forward, _backward, _jvp, constants=4, every=True)


def _slope(inner: Tensor, square: Tensor, whole: Tensor, rows: Tensor) -> Tensor:
    """N with d(b^2) = <N, d(W'W)>, for M = W'W / b^2: M for the Frobenius norm, signs of M in the largest rows.

    Rows that are equally large share it evenly; none has it where b is not from either, but 1.
    """
    chosen = rows == square
    share = chosen / chosen.sum(-2, keepdim=True, dtype=inner.real.dtype).clamp(min=1)
    return torch.where(whole == square, inner, signs(inner) * share)


def _pull_back(
    tall: Tensor, inner: Tensor | None, factors: tuple[float, float], out: Tensor, by_inner: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Back through a W + b W M with M = W'W and (a, b) = `factors`: D and N, of which W receives D + W (N + N').

    None for M stands for the identity.
    """
    linear, cubic = factors
    # With beta = 0 the first argument is not read: a product and its factor in one launch.
    start, weight = (tall[..., :1, :], 0) if by_inner is None else (by_inner, 1)
    more = torch.baddbmm(start, tall.mH, out, beta=weight, alpha=cubic)
    if inner is None:
        return (linear + cubic) * out, more
    return torch.baddbmm(out, out, inner, beta=linear, alpha=cubic), more


def _push_forward(tall: Tensor, inner: Tensor, factors: tuple[float, float], change: Tensor) -> tuple[Tensor, Tensor]:
    """Forward through a W + b W M: how it moves, and how M = W'W does."""
    linear, cubic = factors
    half = torch.bmm(tall.mH, change)
    both = half + half.mH
    direct = torch.baddbmm(change, change, inner, beta=linear, alpha=cubic)
    return torch.baddbmm(direct, tall, both, alpha=cubic), both
