"""Cross-entropy against the worst that a perturbation can do to the logits."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.losses._base import Loss, Number, Reduction, wide
from lipkit.losses.margins import check_classes
from lipkit.losses.pair_constants import Constants, label_constants


@final
class LipschitzMargin(Loss):
    """Lipschitz-margin training: CE over z_y and z_j + epsilon K_yj for the rivals j.

    K_yj bounds the constant of z_y - z_j: a `Bound` of the whole map gives sqrt 2 K (in l2), of classes K_y + K_j, of
    pairs itself; a (classes, classes) tensor holds the pairs. Gradients flow into the constants. Any kind of bound may
    train; only EXACT and UPPER ones make the promise below true.

    Promise: where the true class leads the modified logits, the prediction is right and constant within epsilon.
    The loss grows with epsilon. Cost: one pass; in float64 if the constants are.
    Reference: Tsuzuku, Sato, Sugiyama 2018; constants of pairs in place of sqrt 2 K are a refinement of ours.

    Args:
        epsilon: Radius of the perturbation, in the norm of the constants.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    epsilon = Number(0.0)

    def __init__(self, epsilon: float, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.epsilon = epsilon

    def forward(
        self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], constants: Constants
    ) -> Float[Tensor, "..."]:
        """The loss of logits against class indices, given the constants of their differences."""
        check_classes(input, target)
        logits = wide(input)
        worst = logits + self.epsilon * label_constants(constants, target, logits.shape[1])
        losses = functional.cross_entropy(worst, target.long(), reduction="none")
        return self.reduce(losses.to(logits.dtype))
