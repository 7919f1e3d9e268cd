"""Residual layers that are gradients of convex functions."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.nn.residual._base import DenseResidual
from lipkit.nn.residual.sll import DiagonalLayer


@final
class ConvexGradient(DiagonalLayer, DenseResidual):
    """x - W' (c phi(W x + b)) with W' diag(c) W <= I: the gradient of a convex function, of constant 1.

    With phi the derivative of Phi it is the gradient of ||x||^2 / 2 - sum_i c_i Phi(w_i x + b_i): the identity minus a
    gradient of constant 1. Its Jacobian I - W' C D W with slopes 0 <= D <= I is symmetric, with eigenvalues in [0, 1],
    so the layer is monotone: <T(x) - T(y), x - y> >= 0. `SLL` takes steps twice as long, and is neither. c_i = 1 / T_i
    with the T of `SLL`.
    A chain of such layers has constant 1, but is no gradient: Jacobians commute only by chance. Means are one
    (`ConvexSum`).

    Guarantee: constant 1, symmetric Jacobian with eigenvalues in [0, 1], for the weights as they are multiplied with.
    Cost: two products, and `steps` Gram products.
    Reference: Béthune 2024, section 7.2, for the idea; this case is ours, with the step sizes of Araujo et al. 2023.

    Args:
        features: Entries of an input, on its last axis; the output has as many.
        hidden: Rows of W; `features` if None.
        activation: phi, non-decreasing with slopes of at most one (checked); nn.ReLU() if None.
        steps: Gram products, 1 to 6; 1 if None.
    """

    def coefficient_of(self, weight: Float[Tensor, "..."]) -> Float[Tensor, " hidden"]:
        """1 / T for each hidden entry, rounded down."""
        whole = super().coefficient_of(weight)
        info = torch.finfo(whole.dtype)
        # Half of a number is exact unless it is subnormal; then it may be rounded up, by less than the smallest number.
        return (whole / 2 - info.tiny * info.eps).relu()
