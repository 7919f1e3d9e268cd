"""Globally robust networks: one more logit for "not certified", and cross-entropy over all of them."""

import math
from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.losses._base import Loss, Number, Reduction, wide
from lipkit.losses.margins import check_classes, check_logits, rivals
from lipkit.losses.pair_constants import Constants, label_constants


def bottom_logit(
    logits: Float[Tensor, "batch classes"], epsilon: float, constants: Constants
) -> Float[Tensor, " batch"]:
    """z_bot = max_{i != j} z_i + epsilon K_ij with j the predicted class: the best any rival can reach within epsilon.

    Promise: if z_bot < z_j, the prediction j is constant within epsilon (with constants that certify). At a tie the
    first of the largest logits is predicted, and z_bot >= z_j: ties abstain.
    """
    check_logits(logits)
    predicted = logits.detach().argmax(1)
    worst = logits + epsilon * label_constants(constants, predicted, logits.shape[1])
    return worst.masked_fill(~rivals(predicted, logits.shape[1]), -math.inf).amax(1)


@final
class GloRo(Loss):
    """Cross-entropy over the logits and z_bot, the logit of abstaining: CE([z, z_bot], y).

    Written as CE(z, y) + weight softplus(z_bot - LSE(z)), for weight 1 the same number; for other weights it is the
    authors' TRADES form, CE(z, y) + weight KL([softmax z, 0] || softmax [z, z_bot]), because that divergence is
    LSE([z, z_bot]) - LSE(z). Constants as in `LipschitzMargin`; the ones of pairs are the authors'.

    Promise: a loss below log 2 (weight 1) means that z_y > z_bot: right, and certified at epsilon. Cost: one pass.
    Reference: Leino, Wang, Fredrikson 2021; the closed form of the divergence is ours.

    Args:
        epsilon: Radius of the perturbation, in the norm of the constants.
        weight: Factor on the term for abstaining.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    epsilon = Number(0.0)
    weight = Number(0.0)

    def __init__(self, epsilon: float, *, weight: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction, epsilon=epsilon, weight=weight)

    def forward(
        self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], constants: Constants
    ) -> Float[Tensor, "..."]:
        """The loss of logits against class indices, given the constants of their differences."""
        check_classes(input, target)
        logits = wide(input)
        bottom = bottom_logit(logits, self.epsilon, constants)
        # softplus(t) = -log sigmoid(-t), which has no switch to a linear branch.
        abstain = -functional.logsigmoid(logits.logsumexp(1) - bottom)
        losses = functional.cross_entropy(logits, target.long(), reduction="none") + self.weight * abstain
        return self.reduce(losses.to(logits.dtype))
