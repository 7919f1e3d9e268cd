"""Cross-entropies of the logits of several noisy copies of each input: training for randomized smoothing."""

import math
from abc import ABC, abstractmethod
from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ShapeError
from lipkit.losses._base import Loss, Number, Reduction, wide
from lipkit.losses.margins import check_classes


class _OfDraws(Loss, ABC):
    """A loss of log-probabilities of shape (draws, batch, classes), one number for each sample; abstract."""

    def forward(
        self, input: Float[Tensor, "draws batch classes"], target: Int[Tensor, " batch"]
    ) -> Float[Tensor, "..."]:
        """The loss of the logits of noisy copies against class indices."""
        if input.ndim != 3 or not input.shape[0]:
            raise ShapeError(
                f"Noisy logits have shape (draws >= 1, batch, classes), got {tuple(input.shape)}; stack the logits of "
                "the copies, or give those of one copy an axis, logits[None]."
            )
        check_classes(input[0], target)
        return self.reduce(self._each(wide(input).log_softmax(2), target.long()))

    @abstractmethod
    def _each(
        self, logs: Float[Tensor, "draws batch classes"], target: Int[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """The losses of the samples, from the logarithms of all probabilities."""


@final
class NoisyCrossEntropy(_OfDraws):
    """Noise augmentation: the mean over m noisy copies z_i of CE(z_i, y).

    Promise: over the noise it has the mean E CE(f(x + noise), y), which by Jensen's inequality is at least the
    cross-entropy of the smoothed probabilities E softmax f(x + noise). Cost: one pass.
    Reference: Cohen, Rosenfeld, Kolter 2019.

    Args:
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def _each(
        self, logs: Float[Tensor, "draws batch classes"], target: Int[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        return _cross_entropies(logs, target)


@final
class SmoothedCrossEntropy(_OfDraws):
    """The cross-entropy of the mean probabilities: -log (1/m) sum_i softmax(z_i)_y, the objective of SmoothAdv.

    For adversarial training of a smoothed classifier, evaluate it at inputs that an attack on
    `certify.smoothing.Noisy` found. At m = 1 it is the cross-entropy.

    Promise: at most `NoisyCrossEntropy` of the same logits; below log 2 exactly where the label has more than half of
    the mean probability of these copies. Its mean over the noise is at least -log E softmax(f)_y and nears it as m
    grows. Cost: one pass; logarithms throughout, so nothing underflows.
    Reference: Salman et al. 2019 (provably robust deep learning via adversarially trained smoothed classifiers).

    Args:
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def _each(
        self, logs: Float[Tensor, "draws batch classes"], target: Int[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        return functional.nll_loss(_log_mean(logs), target, reduction="none")


@final
class Consistency(_OfDraws):
    """Cross-entropy, and a penalty where noisy copies of one input disagree.

        (1/m) sum_i [CE(z_i, y) + weight KL(q || p_i)] + entropy H(q),   p_i = softmax(z_i),   q = (1/m) sum_i p_i

    Copies that agree give large shares of votes, so large radii; the entropy asks that they agree on something.

    Promise: at least `NoisyCrossEntropy`, and the same where all copies are sure of the label; the divergence is zero
    exactly where all copies have the same probabilities, so m = 1 has none. Cost: one pass.
    Reference: Jeong, Shin 2020 (consistency regularization for certified robustness), who use m = 2, entropy = 0.5 and
    on CIFAR-10 weight = 20 at sigma 0.25 and 10 above.

    Args:
        weight: Factor of the divergence.
        entropy: Factor of the entropy.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    weight = Number(0.0)
    entropy = Number(0.0)

    def __init__(self, weight: float = 10.0, entropy: float = 0.5, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction, weight=weight, entropy=entropy)

    def _each(
        self, logs: Float[Tensor, "draws batch classes"], target: Int[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        log_mean = _log_mean(logs)
        mean = log_mean.exp()
        divergence = (mean * (log_mean - logs)).sum(2).mean(0)
        entropy = -(mean * log_mean).sum(1)
        return _cross_entropies(logs, target) + self.weight * divergence + self.entropy * entropy


def _cross_entropies(
    logs: Float[Tensor, "draws batch classes"], target: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    return functional.nll_loss(logs.mean(0), target, reduction="none")


def _log_mean(logs: Float[Tensor, "draws batch classes"]) -> Float[Tensor, "batch classes"]:
    """The logarithm of the mean of probabilities, from their logarithms."""
    return logs.logsumexp(0) - math.log(len(logs))
