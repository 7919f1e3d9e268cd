"""Cross-entropies with a margin: an offset on the true logit, or little weight for samples that already lead."""

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.losses._base import LiveNumber, Loss, Number, Reduction, wide
from lipkit.losses.margins import check_classes, of_label, rivals


@final
class OffsetCrossEntropy(Loss):
    """temperature CE((z - offset e_y) / temperature, y): cross-entropy with a handicap on the own class.

    Defaults are those used with 1-Lipschitz networks at radii around 36/255: temperature 1/4, offset 3/2 sqrt 2.

    Promise: at least max(0, offset - margin), so a loss l means a margin >= offset - l, and an l2 radius of
    (offset - l) / sqrt 2 for 1-Lipschitz networks. Offset 0 and temperature 1 is cross-entropy. Cost: one pass.
    Reference: Prach and Lampert 2022.

    Args:
        offset: Subtracted from the true logit, in units of the logits.
        temperature: Divides the logits, and multiplies the loss.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    offset = Number(0.0)
    temperature = Number(0.0, open_low=True)

    def __init__(
        self, offset: float = 1.5 * math.sqrt(2.0), temperature: float = 0.25, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction, offset=offset, temperature=temperature)

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        logits = subtract_offset(wide(input), target, self.offset) / self.temperature
        return self.reduce(self.temperature * functional.cross_entropy(logits, target.long(), reduction="none"))


def subtract_offset(
    logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], offset: float | Tensor
) -> Float[Tensor, "batch classes"]:
    """z - offset e_y."""
    return torch.where(rivals(target, logits.shape[1]), logits, logits - offset)


@final
class LogitAnnealing(Loss):
    """-T (1 - p)^beta log p with p the own entry of softmax((z - offset e_y) / T).

    A focal form of `OffsetCrossEntropy`, which is beta = 0. The power is evaluated as (-expm1(log p))^beta, so it does
    not lose the digits of 1 - p.

    Promise: >= 0, decreasing in the margin; gradients finite for beta = 0 or beta >= 1 (other values are refused).
    Cost: one pass. Reference: Lai et al. 2025 (block reflector orthogonal layers), whose values are the defaults.

    Args:
        temperature: Divides the logits; T above.
        offset: Subtracted from the true logit before the softmax, in units of the logits.
        beta: Exponent of the focal factor: 0, or at least 1.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    temperature = Number(0.0, open_low=True)
    offset = LiveNumber(0.0)
    beta = Number(0.0)

    def __init__(
        self,
        temperature: float = 0.75,
        offset: float | Tensor = 2.0,
        beta: float = 5.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, temperature=temperature, offset=offset, beta=beta)

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        if 0.0 < self.beta < 1.0:
            raise ArgumentError(
                f"beta is 0 or at least 1, got {self.beta}: between them the gradient is infinite at 1."
            )
        logits = subtract_offset(wide(input), target, self.offset) / self.temperature
        log_p = of_label(logits.log_softmax(1), target)
        losses = -self.temperature * torch.expm1(log_p).neg().pow(self.beta) * log_p
        return self.reduce(losses)
