"""Orthogonal matrices by the Newton-Schulz iteration for the inverse square root."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.methods._arithmetic.safe_scaling import contract
from lipkit.nn.methods._isometry import IsometryMethod

# Added to the eigenvalues of W'W: rounding makes those that are smaller negative, and negative ones diverge.
_RIDGE = {torch.float32: 2.0**-22, torch.float64: 2.0**-47}


@final
@dataclass(frozen=True)
class NewtonSchulz(IsometryMethod):
    """The nearest orthogonal matrix W (W'W)^(-1/2), the root by the coupled iteration on A = W'W, ||A|| <= 1:
        Y_0 = A, Z_0 = I;   T = (3 I - Z Y) / 2,  Y <- Y T,  Z <- T Z,   Z -> A^(-1/2).

    In exact arithmetic the steps are those of `Bjorck` with as many steps, but on the smaller side alone: cheaper if
    rows > 3/2 cols. Singular values above ||W|| / 1.5^(steps - 5) arrive at 1, smaller ones stay below; few steps make
    a softer constraint. The Gram matrix squares the condition, so in float32 those below ||W|| / 1000 stay short
    whatever the steps (a random square matrix has such, initial weights do not): use `Bjorck` for them. Iterating Z
    alone, as published for orthogonalisation, blows up once it has converged; the coupled form does not.

    Guarantee: norm at most 1 as stored. Reaches every isometry, which is its own free matrix. Cost: 3 steps cols^3 +
    4 rows cols^2. Gradient: through all steps.
    Reference: Higham 2008, section 6.7; Huang et al. 2020 (ONI).

    Args:
        steps: Iterations; fewer make a softer constraint.
    """

    scale_free = True
    takes_complex = True

    may_fall_short: ClassVar[bool] = True

    steps: int = 15

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ArgumentError(f"NewtonSchulz.steps must be at least 2, got {self.steps}.")

    def __str__(self) -> str:
        return f"Newton-Schulz, {self.steps} steps"

    def isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        tall = contract(tall)
        wide = torch.eye(tall.shape[-1], dtype=tall.dtype, device=tall.device).expand(len(tall), -1, -1)
        gram = torch.baddbmm(wide, tall.mH, tall, beta=_RIDGE[tall.real.dtype])
        # The first step, with Z = I; the last is the one in float64.
        step = torch.sub(1.5 * wide, gram, alpha=0.5)
        gram, root = torch.bmm(gram, step), step
        for _ in range(self.steps - 2):
            step = torch.baddbmm(wide, root, gram, beta=1.5, alpha=-0.5)
            gram, root = torch.bmm(gram, step), torch.bmm(step, root)
        return torch.bmm(tall, root)
