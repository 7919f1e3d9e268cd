"""The last step of methods for complex matrices, which rounding cannot defeat."""

import torch
from jaxtyping import Complex, Complex128
from torch import Tensor

from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative
from lipkit.nn.methods._isometry import excess_of, step_factors
from lipkit.rounding.slacks import UNIT

Symbols = Complex[Tensor, "_ _ _"]


def close_unitary(tall: Symbols, may_fall_short: bool) -> Complex128[Tensor, "_ _ _"]:
    """A near-isometry made one in complex128 with norm at most 1, whatever it was before: see `close_isometry`.

    One Björck step, 3/2 W - 1/2 W (W*W), where the Gram matrix proves singular values of at most 3^(1/2). Complex
    products have four times the roundings of real ones, which the room counts.
    """
    return _step(tall, flat=False)[0] if may_fall_short else _repair(tall)


def _step(tall: Tensor, flat: bool) -> tuple[Tensor, ...]:
    wide = tall.to(torch.complex128)
    gram = torch.bmm(wide.mH, wide)
    excess = excess_of(gram, flat)
    rows, cols = tall.shape[-2:]
    # `room_of_step`, with four times its roundings.
    linear, cubic = step_factors(1.0, 1 - 16 * cols * (rows + cols + 8) * UNIT)
    inner, scaled = gram / excess, wide / excess.sqrt()
    return (torch.baddbmm(scaled, scaled, inner, beta=linear, alpha=cubic),)


def _repair_forward(tall: Tensor) -> Tensors:
    return _step(tall, flat=True)


def _repair_backward(inputs: tuple[Tensor], _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    return (gradients[0].to(inputs[0].dtype),)


def _repair_jvp(_: tuple[Tensor], __: Tensors, tangents: Tensors) -> Gradients:
    return (tangents[0].to(torch.complex128, copy=True),)


# The step with the derivative of the matrix before.
_repair = with_derivative(_repair_forward, _repair_backward, _repair_jvp)
