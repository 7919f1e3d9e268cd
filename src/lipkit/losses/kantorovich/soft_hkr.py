"""HKR against the strongest rivals only: weighted by a softmax, or gathered by a log-sum-exp."""

import math
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.losses._base import Number, Reduction, wide
from lipkit.losses.kantorovich._hkr_base import RivalHKR, ours
from lipkit.losses.margins import check_classes, of_label, rivals


@final
class SoftHKR(RivalHKR):
    """HKR of the own logit, and of the rivals weighted by a softmax over them.

        h(z_y) + sum_{j != y} p_j h(-z_j),   h(s) = scale (-s + alpha (margin - s)+),
        p_j = exp(temperature z_j) / sum_{k != y} exp(temperature z_k)

    The weights are differentiated. The temperature is a number here; deel-torchlip's loss adapts it by a running mean
    of |z|, which is state of a training run and left to a schedule.

    Promise: for temperature 0 all rivals count alike, for temperature -> inf only the largest. Cost: one pass.
    Reference: Serrurier, Mamalet, Fel et al. 2023 (explainable properties of 1-Lipschitz networks).
    """

    @classmethod
    def torchlip(
        cls, min_margin: float, alpha: float, temperature: float = 1.0, *, reduction: Reduction = "mean"
    ) -> Self:
        """From deel-torchlip's margin (twice ours) and alpha in [0, 1); the temperature is the effective one."""
        margin, weight, scale = ours(min_margin, alpha)
        return cls(margin, weight, temperature, scale=scale, reduction=reduction)

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        logits, others = wide(input), rivals(target, input.shape[1])
        shares = (self.temperature * logits).masked_fill(~others, -math.inf).softmax(1)
        terms = torch.where(others, shares * self.hinged(-logits), self.hinged(logits))
        return self.reduce(self.scale * terms.sum(1))


@final
class LseHKR(RivalHKR):
    """HKR of the own logit, and of one smooth maximum of the rivals.

        h(z_y) + h(-s),   s = log(sum_{j != y} exp(t z_j)) / t,   h as in `SoftHKR`,   t = temperature > 0

    Promise: max_{j != y} z_j <= s <= max_{j != y} z_j + log(K - 1) / t, so a zero hinge means a margin of 2 `margin`.
    Cost: one pass. Reference: the loss of this name in deel-torchlip, which sets t = log(K - 1) / (penalty margin).
    """

    temperature = Number(0.0, open_low=True)

    @classmethod
    def torchlip(
        cls, min_margin: float, alpha: float, classes: int, penalty: float = 1.0, *, reduction: Reduction = "mean"
    ) -> Self:
        """deel-torchlip's LseHKRMulticlassLoss with its temperature 1: t = log(K - 1) / (penalty min_margin / 2)."""
        if classes < 3 or penalty <= 0:
            raise ArgumentError(
                f"This form needs 3 classes and a penalty > 0, got {classes} and {penalty}; use LseHKR."
            )
        margin, weight, scale = ours(min_margin, alpha)
        return cls(margin, weight, math.log(classes - 1) / (penalty * margin), scale=scale, reduction=reduction)

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        logits = wide(input)
        t = self.temperature
        rest = (t * logits).masked_fill(~rivals(target, input.shape[1]), -math.inf).logsumexp(1) / t
        return self.reduce(self.scale * (self.hinged(of_label(logits, target)) + self.hinged(-rest)))
