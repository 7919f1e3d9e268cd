"""Orthogonal matrices by projection, with the derivative in closed form."""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

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

    def __str__(self) -> str:
        return "polar factor"

    def isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        return _Projection.apply(tall.to(torch.float64))[0]


class _Projection(torch.autograd.Function):
    """W -> Q, and for the derivative the basis R and the singular values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tall: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, values, right = torch.linalg.svd(tall, full_matrices=False)
        return left @ right, right.mT.contiguous(), values

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        (tall,) = inputs
        orthogonal, basis, values = output
        ctx.mark_non_differentiable(basis, values)
        ctx.save_for_backward(tall, orthogonal, basis, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        # Written in differentiable operations of (tall, orthogonal, gradient): that is the second derivative.
        tall, orthogonal, basis, values = ctx.saved_tensors
        gradient = gradients[0]
        stretch = orthogonal.mT @ tall
        stretch = (stretch + stretch.mT) / 2
        inner = orthogonal.mT @ gradient
        turned = orthogonal @ _Turned.apply(inner - inner.mT, stretch, basis, values)
        if tall.shape[-2] == tall.shape[-1]:
            return turned
        return turned + _Divided.apply(gradient - orthogonal @ inner, stretch, basis, values)


class _Turned(torch.autograd.Function):
    """The solution X of B X + X B = C for symmetric B with eigenvectors `basis` and eigenvalues `values`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(right: Tensor, stretch: Tensor, basis: Tensor, values: Tensor) -> Tensor:  # noqa: ARG004 - see backward
        sums = values[:, :, None] + values[:, None, :]
        return basis @ ((basis.mT @ right @ basis) / _floored(sums, values)) @ basis.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, stretch, basis, values = inputs
        ctx.save_for_backward(output, stretch, basis, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        solution, stretch, basis, values = ctx.saved_tensors
        back = _Turned.apply(gradients[0], stretch, basis, values)
        return back, -(back @ solution.mT + solution.mT @ back), None, None


class _Divided(torch.autograd.Function):
    """C B^-1 for positive B with eigenvectors `basis` and eigenvalues `values`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(right: Tensor, stretch: Tensor, basis: Tensor, values: Tensor) -> Tensor:  # noqa: ARG004 - see backward
        return (right @ basis) / _floored(values, values)[:, None, :] @ basis.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, stretch, basis, values = inputs
        ctx.save_for_backward(output, stretch, basis, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        quotient, stretch, basis, values = ctx.saved_tensors
        back = _Divided.apply(gradients[0], stretch, basis, values)
        return back, -quotient.mT @ back, None, None


def _floored(sums: Tensor, values: Tensor) -> Tensor:
    largest = values.amax(-1).clamp(min=LEAST) * _FLOOR
    return torch.maximum(sums, largest.reshape(-1, *(1,) * (sums.ndim - 1)))
