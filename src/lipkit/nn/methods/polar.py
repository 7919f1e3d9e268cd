"""Orthogonal matrices by projection, with the derivative in closed form."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.core.precision import widest
from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._isometry import IsometryMethod

# Sums of singular values smaller than this part of the largest are taken as that: the derivative grows no further.
_FLOOR = 2.0**-30


@final
@dataclass(frozen=True)
class Polar(IsometryMethod):
    """The nearest isometry, Q with W = Q B and B = (W'W)^(1/2): Q = P R' of the singular value decomposition P S R'.

    The derivative is not that of the decomposition, which is infinite where singular values meet, but of the
    projection. For a gradient G with respect to Q,
        dL/dW = Q X + (I - Q Q') G B^-1,   B X + X B = Q'G - G'Q,
    solved in the basis R, which the forward pass has. Sums of two singular values below 2^-30 of the largest are
    raised to it, so that singular W have a gradient too (the projection is not continuous there).

    Guarantee: an isometry for every free matrix, zero and singular ones included, norm at most 1 as stored. Reaches
    every isometry, which is its own free matrix. Cost: one singular value decomposition in float64, 3 products
    backward, no graph of an iteration in memory. Gradient: any order.
    Reference: Björck and Bowie 1971 for the projection; the closed form of the derivative follows from implicit
    differentiation of its optimality conditions, and its tall case is ours.
    """

    scale_free = True
    takes_complex = True

    def __str__(self) -> str:
        return "polar factor"

    def isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        return _project(tall.to(widest(tall.dtype)))


def _project_forward(tall: Tensor) -> Tensors:
    """Q, and for the derivative the basis R and the singular values."""
    left, values, right = torch.linalg.svd(tall, full_matrices=False)
    return left @ right, right.mH.contiguous(), values


def _project_backward(inputs: tuple[Tensor], outputs: Tensors, gradients: tuple[Tensor, None, None]) -> Gradients:
    # Written in differentiable operations of (tall, orthogonal, gradient): that is the second derivative.
    (tall,) = inputs
    orthogonal, basis, values = outputs
    gradient = gradients[0]
    stretch = orthogonal.mH @ tall
    stretch = (stretch + stretch.mH) / 2
    inner = orthogonal.mH @ gradient
    turned = orthogonal @ _solve(inner - inner.mH, stretch, basis, values)
    if tall.shape[-2] == tall.shape[-1]:
        return (turned,)
    return (turned + _divide(gradient - orthogonal @ inner, stretch, basis, values),)


def _solve_forward(right: Tensor, stretch: Tensor, basis: Tensor, values: Tensor) -> Tensors:  # noqa: ARG001 - see backward
    sums = values[:, :, None] + values[:, None, :]
    return (basis @ ((basis.mH @ right @ basis) / _floor(sums, values)) @ basis.mH,)


def _solve_backward(inputs: Tensors, outputs: Tensors, gradients: tuple[Tensor]) -> Gradients:
    _, stretch, basis, values = inputs
    (solution,) = outputs
    back = _solve(gradients[0], stretch, basis, values)
    return back, -(back @ solution.mH + solution.mH @ back), None, None


def _divide_forward(right: Tensor, stretch: Tensor, basis: Tensor, values: Tensor) -> Tensors:  # noqa: ARG001 - see backward
    return ((right @ basis) / _floor(values, values)[:, None, :] @ basis.mH,)


def _divide_backward(inputs: Tensors, outputs: Tensors, gradients: tuple[Tensor]) -> Gradients:
    _, stretch, basis, values = inputs
    (quotient,) = outputs
    back = _divide(gradients[0], stretch, basis, values)
    return back, -quotient.mH @ back, None, None


_project = with_derivative(_project_forward, _project_backward, constants=2)
# The solution X of B X + X B = C for symmetric B with eigenvectors `basis` and eigenvalues `values`.
_solve = with_derivative(_solve_forward, _solve_backward, tensors=4)
# C B^-1 for positive B with eigenvectors `basis` and eigenvalues `values`.
_divide = with_derivative(_divide_forward, _divide_backward, tensors=4)


def _floor(sums: Tensor, values: Tensor) -> Tensor:
    largest = values.amax(-1).clamp(min=LEAST) * _FLOOR
    return torch.maximum(sums, largest.reshape(-1, *(1,) * (sums.ndim - 1)))
