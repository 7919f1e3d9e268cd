"""The Kantorovich-Rubinstein loss: the mean certificate, whose best value is a Wasserstein distance."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.losses._base import Loss, Reduction, signs, wide
from lipkit.losses.kantorovich.class_frequencies import binary_weights, class_weights
from lipkit.losses.margins import check_classes, rivals


@final
class KR(Loss):
    """Minus the difference of the class means of a score: -(mean_P f - mean_Q f).

    P are the samples with a positive target, Q the others; sample i counts n / n_class, so that 'mean' is this
    difference whatever the class frequencies. A class that is missing from the batch contributes 0: the loss stays
    finite, but its gradient then only shifts the other class; use larger batches, or `synchronise`, which counts the
    classes over all processes of torch.distributed (exact under gradient averaging if all have equal batch sizes).

    Promise: over L-Lipschitz f the loss is at least -L W_1(P, Q), with equality at a Kantorovich potential. Such a
    potential is the classifier of largest mean certificate and may classify hardly better than chance.
    Invariant to f + c. Cost: one pass, and one all-reduce of two numbers if synchronised.
    Reference: Arjovsky et al. 2017; Béthune 2024, property 4.

    Args:
        synchronise: Whether classes are counted over all processes of torch.distributed.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def __init__(self, *, synchronise: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.synchronise = synchronise

    def forward(self, input: Float[Tensor, "*shape"], target: Tensor) -> Float[Tensor, "..."]:
        """The loss of scores against binary targets of the same shape (positive or not)."""
        scores = wide(input)
        signed = signs(scores, target) * scores
        return self.reduce(-binary_weights(target > 0, scores, self.synchronise) * signed)


@final
class MulticlassKR(Loss):
    """The mean over classes k of the KR loss of logit z_k, class k against all others.

        -(1/K) sum_k (mean_{y = k} z_k - mean_{y != k} z_k)

    Class means that do not exist in a batch count 0, as in `KR`; `synchronise` as there.

    Promise: if each logit is L-Lipschitz, at least -L times the mean of W_1(class k, rest). Cost: one pass.
    Reference: Serrurier et al. 2021; the weights are those of the deel-lip and deel-torchlip libraries.

    Args:
        synchronise: Whether classes are counted over all processes of torch.distributed.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def __init__(self, *, synchronise: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.synchronise = synchronise

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        check_classes(input, target)
        logits, own = wide(input), ~rivals(target, input.shape[1])
        weights = class_weights(own, logits, self.synchronise)
        return self.reduce((torch.where(own, -weights, weights) * logits).mean(1))
