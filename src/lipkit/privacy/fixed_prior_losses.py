"""Losses of single records that have a constant: Kantorovich-Rubinstein with fixed class shares, and a cosine."""

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses import Loss, MulticlassHinge
from lipkit.losses._base import Number, Reduction, signs, wide
from lipkit.losses.margins import check_classes, of_label, rivals


@final
class BinaryKR(Loss):
    """-y f for y = +1 (positive targets) or -1: the binary KR loss of equally frequent classes, with a gradient of 1.

    `losses.KR` counts the classes of a batch, so one record moves the gradients of all; this one does not. Its gradient
    never decays, which is the best signal for a given noise. Reference: Béthune 2024, equation 6.10: for equally
    frequent classes its infimum over L-Lipschitz f is -(L / 2) W_1(P, Q).
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Float[Tensor, "*shape"], target: Tensor) -> Float[Tensor, "..."]:
        """The loss of scores against binary targets of the same shape (positive or not)."""
        scores = wide(input)
        return self.reduce(-signs(scores, target) * scores)

    def logit_constant(self, outputs: int) -> float:
        """1 for each score: their mean or their sum."""
        return outputs**-0.5 if self.reduction == "mean" else outputs**0.5


@final
class FixedPriorHKR(Loss):
    """HKR of all logits with fixed class shares pi, and `alpha` times the hinge of `MulticlassHinge`:

        -(1/K) sum_k z_k (1[y = k] / pi_k - 1[y != k] / (1 - pi_k)) + alpha hinge(z, y).

    Shares are public numbers, where `losses.MulticlassHKR` takes those of the batch. alpha = 0 is KR alone.

    Guarantee: the constant in the logits is at most (1/K) max_k sqrt(pi_k^-2 + sum_{j != k} (1 - pi_j)^-2) +
    alpha sqrt((K - 1) / K). For equal shares the first term is slightly above 1: 1.05409 for ten classes.
    Reference: Béthune 2024, appendix B, where the constants are given as 1 and 1 + alpha.

    Args:
        priors: Shares of the classes, each in (0, 1), with sum 1.
        alpha: Weight of the hinge.
        margin: Margin of the hinge.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    alpha = Number(0.0)

    def __init__(
        self, priors: Sequence[float], alpha: float = 0.0, margin: float = 1.0, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction, alpha=alpha)
        shares = torch.tensor(list(priors), dtype=torch.float64)
        # Shares written with four digits add up to one this well.
        if len(shares) < 2 or not bool(((shares > 0) & (shares < 1)).all()) or abs(float(shares.sum()) - 1) > 1e-3:
            raise ArgumentError(f"Class shares lie in (0, 1) and add up to 1, got {list(priors)}.")
        self.priors: Tensor
        self.register_buffer("priors", shares)
        self.hinge = MulticlassHinge(margin, reduction="none")

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        logits = wide(input)
        if logits.shape[1] != len(self.priors):
            raise ShapeError(f"There are {len(self.priors)} class shares, and logits of {logits.shape[1]} classes.")
        shares = self.priors.to(logits)
        weights = torch.where(rivals(target, len(shares)), 1 / (1 - shares), -1 / shares)
        kr = (weights * logits).mean(1)
        return self.reduce(kr if self.alpha == 0 else kr + self.alpha * self.hinge(input, target))

    def logit_constant(self, outputs: int) -> float:
        """The constant of KR by the rarest class, and that of the hinge."""
        own, other = self.priors**-2, (1 - self.priors) ** -2
        kr = float((own + other.sum() - other).max().sqrt()) / len(self.priors)
        return kr + self.alpha * math.sqrt((len(self.priors) - 1) / len(self.priors))


@final
class BoundedCosine(Loss):
    """-z_y / max(least, |z|_2): minus the cosine between the logits and the own class, with a floor under the length.

    Guarantee: the constant in the logits is 1 / least. Beyond the floor the gradient is (e_y - cos u) / |z|, of norm
    at most 1 / least; below it is e_y / least. The plain cosine has no constant near zero.
    Reference: Béthune 2024, appendix B.

    Args:
        least: The floor under the length of the logits, > 0.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    least = Number(0.0, open_low=True)

    def __init__(self, least: float = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction, least=least)

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        logits = wide(input)
        squares = logits.square().sum(1)
        # The root has no derivative at zero; a record below the floor does not need one.
        below = squares <= self.least**2
        lengths = torch.where(below, self.least, torch.where(below, 1.0, squares).sqrt())
        return self.reduce(-of_label(logits, target) / lengths)

    def logit_constant(self, outputs: int) -> float:
        """1 / least."""
        return 1 / self.least
