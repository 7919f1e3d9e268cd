"""Cross-entropies with an inverse temperature: for Lipschitz networks the knob between accuracy and robustness."""

from abc import ABC
from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.losses._base import Loss, Number, Reduction, signs, wide
from lipkit.losses.margins import check_classes, check_probabilities


class _Tempered(Loss, ABC):
    """A loss of scores times an inverse temperature tau, divided by it or not; abstract.

    Args:
        tau: Inverse temperature: the factor on the scores.
        divided: Whether the loss is divided by `tau`.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    tau = Number(0.0, open_low=True)

    def __init__(self, tau: float = 1.0, *, divided: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = tau
        self.divided = divided

    def reduce_scaled(self, losses: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The reduced losses, divided by tau if `divided`."""
        return self.reduce(losses / self.tau if self.divided else losses)


@final
class TauBCE(_Tempered):
    """-log sigmoid(tau y f), y = +1 for positive targets and -1 otherwise; divided by tau if `divided`.

    tau is an inverse temperature: training 1-Lipschitz networks at tau is training tau-Lipschitz ones at 1. Divided by
    tau the gradient is at most 1 whatever tau is (the form of deel-lip and deel-torchlip).

    Promise: over L-Lipschitz f on a set of diameter D the minimum is attained, with
    |f| <= L D + |log(p+ / p-)| / tau for class frequencies p+, p-; for tau -> 0 and equal frequencies
    (4 / tau) (loss - log 2) tends to the KR loss. Cost: one pass.
    Reference: Béthune 2024, propositions 4 and 5; the bound is ours (the printed one needs equal classes).
    """

    def forward(self, input: Float[Tensor, "*shape"], target: Tensor) -> Float[Tensor, "..."]:
        """The loss of scores against binary targets of the same shape (positive or not)."""
        scores = wide(input)
        losses = -functional.logsigmoid(self.tau * signs(scores, target) * scores)
        return self.reduce_scaled(losses)


@final
class TauCrossEntropy(_Tempered):
    """log sum_j exp(tau z_j) - tau z_y; divided by tau if `divided`.

    Divided by tau it is the Fenchel-Young loss of beta times the negative entropy, beta = 1 / tau:
        beta LSE(z / beta) - z_y,
    which tends to max_j z_j - z_y for beta -> 0 and, less beta log K, to mean_j z_j - z_y for beta -> inf: from the
    perceptron's loss to minus the mean certificate.

    Soft labels p (of a teacher, or of mixed images) give sum_y p_y loss(z, y), as in `EMMA`: tau <p, z> takes the place
    of tau z_y.

    Promise: convex in z, 0 <= loss. Cost: one pass. Reference: Béthune 2024, section 4.4; Blondel et al. 2020.
    """

    def forward(
        self,
        input: Float[Tensor, "batch classes"],
        target: Int[Tensor, " batch"] | Float[Tensor, "batch classes"],
    ) -> Float[Tensor, "..."]:
        """The loss of logits against class indices or probabilities."""
        logits = wide(input)
        if target.is_floating_point():
            check_probabilities(input, target)
            aims = target.to(logits.dtype)
        else:
            check_classes(input, target)
            aims = target.long()
        return self.reduce_scaled(functional.cross_entropy(self.tau * logits, aims, reduction="none"))
