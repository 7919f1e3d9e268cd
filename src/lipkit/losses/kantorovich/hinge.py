"""Hinge losses with a margin, for scores and for logits one against all."""

from abc import ABC
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.losses._base import Loss, Number, Reduction, signs, wide
from lipkit.losses.kantorovich.class_frequencies import binary_weights
from lipkit.losses.margins import check_classes, rivals


class _HingeLoss(Loss, ABC):
    """A loss with a hinge at `margin`; abstract."""

    margin = Number(0.0, open_low=True)

    def __init__(self, margin: float = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction, margin=margin)

    @classmethod
    def torchlip(cls, min_margin: float = 1.0, *, reduction: Reduction = "mean") -> Self:
        """The same loss from deel-torchlip's parameter: the distance between the two hinges, so margin = half of it."""
        return cls(min_margin / 2, reduction=reduction)


@final
class Hinge(_HingeLoss):
    """max(0, margin - y f) for y = +1 (positive targets) or -1.

    With `balanced`, sample i counts n / n_class, so 'mean' is the sum of the two class means instead of the mean (over
    all processes with `synchronise`; see `KR`).
    `Hinge.torchlip(min_margin)` hinges at min_margin / 2, as deel-torchlip and deel-lip >= 1.4 do.

    Promise: 0 exactly if every sample has |f| >= margin on its side; then an L-Lipschitz f is certified to margin / L.
    Cost: one pass. Reference: Cortes and Vapnik 1995.

    Args:
        margin: Score below which a sample counts, on its side of 0.
        balanced: Whether both classes count alike, however many samples they have.
        synchronise: Whether classes are counted over all processes of torch.distributed.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def __init__(
        self,
        margin: float = 1.0,
        *,
        balanced: bool = False,
        synchronise: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(margin, reduction=reduction)
        self.balanced = balanced
        self.synchronise = synchronise

    def forward(self, input: Float[Tensor, "*shape"], target: Tensor) -> Float[Tensor, "..."]:
        """The loss of scores against binary targets of the same shape (positive or not)."""
        scores = wide(input)
        losses = (self.margin - signs(scores, target) * scores).relu()
        if self.balanced:
            losses = binary_weights(target > 0, scores, self.synchronise) * losses
        return self.reduce(losses)


@final
class MulticlassHinge(_HingeLoss):
    """Hinges of all logits, class against the rest: ((K - 1) (margin - z_y)+ + sum_{j != y} (margin + z_j)+) / K.

    The factor K - 1 lets the own class weigh as much as all others together. `MulticlassHinge.torchlip(min_margin)`
    hinges at min_margin / 2.

    Promise: 0 exactly if z_y >= margin and z_j <= -margin for all others, so the margin of the logits is 2 `margin`.
    Cost: one pass. Reference: Serrurier et al. 2021, weights as in deel-lip and deel-torchlip.

    Args:
        margin: Logit below which the own class counts; rivals count above its negative.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        logits, classes = wide(input), input.shape[1]
        others = rivals(target, classes)
        losses = torch.where(others, (self.margin + logits).relu(), (classes - 1) * (self.margin - logits).relu())
        return self.reduce(losses.mean(1))
