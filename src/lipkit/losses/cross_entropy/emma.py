"""Cross-entropy against rivals that are moved to the boundary, but no farther than the radius."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.bound import Bound, Scope
from lipkit.errors import ArgumentError
from lipkit.losses._base import LiveNumber, Loss, Number, Reduction, wide
from lipkit.losses.margins import check_probabilities, leads
from lipkit.losses.pair_constants import Constants, label_constants


@final
class EMMA(Loss):
    """Lipschitz-margin training at the radius each rival already concedes: every rival gets its own epsilon.

        CE over z_j - z_y + e_j epsilon K_yj,   e_j = clip((z_y - z_j) / (epsilon K_yj), floor, 1) without gradient

    Rivals inside the radius are moved just to the boundary instead of far beyond it, which keeps the gradients of
    hard samples useful. Where every rival is beyond epsilon this is `LipschitzMargin`. Constants as there.

    Soft labels p (of a teacher, or of mixed images) give sum_y p_y loss(z, y): the mean over labels drawn from p, at
    most `classes` times the work. For a label that trails, rivals in front of it move by the floor alone.

    Promise: between `LipschitzMargin` at floor epsilon and at epsilon. Cost: one pass; in float64 if the constants are.
    Reference: Hu, Zou, Wang, Leino, Fredrikson 2023 (deterministic certification on ImageNet).

    Args:
        epsilon: Radius of the perturbation, in the norm of the constants.
        floor: Smallest share of `epsilon` that a rival is moved by, in [0, 1].
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    epsilon = LiveNumber(0.0)
    floor = Number(0.0, 1.0)

    def __init__(self, epsilon: float | Tensor, *, floor: float = 0.01, reduction: Reduction = "mean") -> None:
        super().__init__(reduction, epsilon=epsilon, floor=floor)

    def forward(
        self,
        input: Float[Tensor, "batch classes"],
        target: Int[Tensor, " batch"] | Float[Tensor, "batch classes"],
        constants: Constants,
    ) -> Float[Tensor, "..."]:
        """The loss of logits against class indices or probabilities, given the constants of their differences."""
        logits = wide(input)
        if not target.is_floating_point():
            return self.reduce(self._of_labels(logits, target, constants).to(logits.dtype))
        check_probabilities(logits, target)
        if isinstance(constants, Bound) and constants.of is Scope.SAMPLE:
            raise ArgumentError("Constants for each sample need class indices; give soft labels those of pairs.")
        batch, classes = logits.shape
        # Every sample once with each class as its label.
        labels = torch.arange(classes, device=logits.device).repeat(batch)
        each = self._of_labels(logits.repeat_interleave(classes, 0), labels, constants).view(batch, classes)
        return self.reduce((target * each).sum(1).to(logits.dtype))

    def _of_labels(
        self, logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], constants: Constants
    ) -> Float[Tensor, " batch"]:
        lead = leads(logits, target)
        gain = self.epsilon * label_constants(constants, target, logits.shape[1])
        with torch.no_grad():
            # Where nothing can be gained (the own class, constants 0) the share does not matter.
            share = (lead / torch.where(gain > 0, gain, 1.0)).clamp(self.floor, 1.0)
        return functional.cross_entropy(share * gain - lead, target.long(), reduction="none")
