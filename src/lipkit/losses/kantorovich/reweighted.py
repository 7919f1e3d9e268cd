"""Binary cross-entropy seen as transport: a KR loss between the distributions of the errors."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses._base import Loss, Number, Reduction, signs, wide
from lipkit.losses.kantorovich.class_frequencies import inverse

# Halvings of an interval of floats after which its ends are neighbours, or both at the precision of the means.
_HALVINGS = 64


@torch.no_grad()
def balanced_bias(
    positive: Float[Tensor, " n_positive"], negative: Float[Tensor, " n_negative"], tau: float = 1.0
) -> Float[Tensor, ""]:
    """T with mean_P sigmoid(-tau (f - T)) = mean_Q sigmoid(tau (f - T)): as many soft errors on either side.

    The left side grows with T, the right side falls, and both meet between the smallest and the largest score.
    Promise: the root up to rounding of the means, in float64; no gradient. Cost: 64 passes (bisection).
    Reference: Béthune 2024, after equation 4.16.
    """
    if not 0.0 < tau < float("inf"):
        raise ArgumentError(f"tau is a finite number > 0, got {tau}.")
    if positive.numel() == 0 or negative.numel() == 0:
        raise ShapeError(
            f"Errors balance between two classes, got {positive.numel()} and {negative.numel()} scores; use both."
        )
    p, q = positive.double().flatten(), negative.double().flatten()
    low, high = torch.minimum(p.min(), q.min()), torch.maximum(p.max(), q.max())
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        more = torch.sigmoid(-tau * (p - middle)).mean() < torch.sigmoid(tau * (q - middle)).mean()
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return low + (high - low) / 2


@final
class ReweightedKR(Loss):
    """-tau (mean_P g(f) f - mean_Q g(-f) f), g(f) = sigmoid(-tau f) without gradient: KR between the errors.

    Its gradient is that of mean_P softplus(-tau f) + mean_Q softplus(tau f), the binary cross-entropy with class means:
    samples count as much as they are wrong. With `balanced`, f - T replaces f, T = `balanced_bias`; then both classes
    have the same total weight Z, and the gradient is tau Z times that of the KR loss between the two error
    distributions. A class that is missing contributes 0 (and T = 0). Sample i counts n / n_class.

    Promise: the gradient, not the value. Cost: one pass, 64 more with `balanced`.
    Reference: Béthune 2024, equations 4.15 to 4.17.

    Args:
        tau: Inverse temperature: the factor on the scores.
        balanced: Whether scores are shifted so that both classes have equal soft errors.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    tau = Number(0.0, open_low=True)

    def __init__(self, tau: float = 1.0, *, balanced: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = tau
        self.balanced = balanced

    def forward(self, input: Float[Tensor, "*shape"], target: Tensor) -> Float[Tensor, "..."]:
        """The loss of scores against binary targets of the same shape (positive or not)."""
        sign, positive = signs(wide(input), target), target > 0
        scores = wide(input)
        counts = torch.stack([positive.sum(), (~positive).sum()])
        if self.balanced and bool((counts > 0).all()):
            scores = scores - balanced_bias(scores[positive], scores[~positive], self.tau).to(scores.dtype)
        weights = inverse(counts.to(scores)) * scores.numel()
        wrong = torch.sigmoid(-self.tau * sign * scores.detach())
        return self.reduce(-self.tau * torch.where(positive, weights[0], weights[1]) * wrong * sign * scores)
