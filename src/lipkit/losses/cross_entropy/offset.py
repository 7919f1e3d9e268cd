"""Cross-entropy that subtracts an offset from the true logit, and so asks for a margin."""

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.losses._base import Loss, Reduction, wide
from lipkit.losses.checked_fields import Number
from lipkit.losses.margins import check_classes, rivals


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
