"""Orthogonal matrices by the iteration of Björck and Bowie."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods._isometry import finished
from lipkit.nn.methods._scaling import contracted


@final
@dataclass(frozen=True)
class Bjorck(MatrixMethod):
    """The nearest orthogonal matrix: W <- 3/2 W - 1/2 W W' W, which takes each singular value s to 3/2 s - 1/2 s^3.

    It starts from W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf) on the smaller side, so all singular values
    are in [0, 1] and stay there: what has not converged yet is below one, never above. Singular values above
    b / 1.5^(steps - 5) arrive at 1 up to 1e-6; initial weights are orthogonal already.

    Guarantee: norm at most 1 as stored: the last step is done in float64, and 3/2 s - 1/2 s^3 <= 1 for every s in
    [0, 2], so earlier rounding cannot carry it above. Cost: 2 `steps` products with the smaller side; the last two in
    float64. Gradient: through all steps.
    Reference: Björck and Bowie 1971; Anil, Lucas and Grosse 2019.
    """

    steps: int = 15

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ArgumentError(f"Bjorck.steps must be at least 1, got {self.steps}.")

    def __str__(self) -> str:
        return f"Björck, {self.steps} steps"

    def matrix(self, raw: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        flipped = raw.shape[-2] < raw.shape[-1]
        tall = contracted(raw.mT if flipped else raw)
        for _ in range(self.steps - 1):
            tall = improved(tall)
        found = finished(tall, raw.dtype)
        return found.mT if flipped else found


def improved(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
    """One step, 3/2 W - 1/2 W (W'W): two products, the first on the smaller side."""
    return torch.baddbmm(tall, tall, tall.mT @ tall, beta=1.5, alpha=-0.5)
