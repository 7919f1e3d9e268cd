"""The hinge-Kantorovich-Rubinstein loss, and what its parameters are called elsewhere."""

from typing import Self, final

from jaxtyping import Float, Int
from torch import Tensor

from lipkit.losses._base import Reduction
from lipkit.losses.kantorovich._hkr_base import HingedKR, Torchlip, ours, torchlip
from lipkit.losses.kantorovich.hinge import Hinge, MulticlassHinge
from lipkit.losses.kantorovich.kr import KR, MulticlassKR


@final
class HKR(HingedKR):
    """scale (KR + alpha hinge): sum over the two classes of the class mean of -y f + alpha max(0, margin - y f).

    alpha = 0 is `KR`, alpha -> inf a hinge. The conventions in use, all of the same shape:
        Béthune 2024 (4.14), (5.2)   HKR(m, alpha), or (m, lambda): what is written above
        deel-torchlip, deel-lip 1.4+ HKR.torchlip(min_margin, a): a mean(hinge at min_margin / 2) - (1 - a) KR
        deel-lip 1.2                 HKR(min_margin, alpha, balanced_hinge=False): the hinge at min_margin
        one-class learning code      HKR(m, lambda, scale=1 / lambda): hinge + KR / lambda
    In the libraries the hinge is the plain mean over the batch, half the sum of class means where classes are equally
    frequent; so there HKR.torchlip(2 m, a) is HKR(m, a / (2 (1 - a)), scale=1 - a).

    A missing class contributes 0; `synchronise` counts classes over all processes (see `KR`).

    Promise: minimisers over 1-Lipschitz f exist; large alpha and small margin favour accuracy, the rest robustness.
    Cost: one pass. Reference: Serrurier et al. 2021; class means as in Béthune 2024, theorem 2.

    Args:
        margin: Margin of the hinge, in units of the score.
        alpha: Weight of the hinge against KR.
        scale: Factor on the whole loss.
        balanced_hinge: Whether the hinge, too, is a sum of class means; False for a plain mean.
        synchronise: Whether classes are counted over all processes of torch.distributed.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def __init__(
        self,
        margin: float = 1.0,
        alpha: float = 1.0,
        *,
        scale: float = 1.0,
        balanced_hinge: bool = True,
        synchronise: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(margin, alpha, scale, reduction)
        self.balanced_hinge = balanced_hinge
        self.synchronise = synchronise

    @classmethod
    def torchlip(
        cls, min_margin: float, alpha: float, *, synchronise: bool = False, reduction: Reduction = "mean"
    ) -> Self:
        """The loss that deel-torchlip calls HKRLoss(alpha, min_margin), equal on every batch."""
        margin, weight, scale = ours(min_margin, alpha)
        return cls(margin, weight, scale=scale, balanced_hinge=False, synchronise=synchronise, reduction=reduction)

    def torchlip_arguments(self) -> Torchlip:
        """deel-torchlip's parameters of this loss up to a factor: exact on batches with equally frequent classes."""
        return torchlip(self.margin, 2.0 * self.alpha if self.balanced_hinge else self.alpha)

    def forward(self, input: Float[Tensor, "*shape"], target: Tensor) -> Float[Tensor, "..."]:
        """The loss of scores against binary targets of the same shape (positive or not)."""
        kr = KR(synchronise=self.synchronise, reduction="none")(input, target)
        hinge = Hinge(self.margin, balanced=self.balanced_hinge, synchronise=self.synchronise, reduction="none")(
            input, target
        )
        return self.combine(kr, hinge)


@final
class MulticlassHKR(HingedKR):
    """scale (MulticlassKR + alpha MulticlassHinge): one HKR for each class against the rest.

    `MulticlassHKR.torchlip(min_margin, a)` is deel-torchlip's HKRMulticlassLoss: a hinge - (1 - a) KR, with the hinge
    at min_margin / 2.

    Promise, cost: as `MulticlassKR` and `MulticlassHinge`. Reference: Serrurier et al. 2021, weights as in deel-lip.

    Args:
        margin: Margin of the hinge, in units of the logits.
        alpha: Weight of the hinge against KR.
        scale: Factor on the whole loss.
        synchronise: Whether classes are counted over all processes of torch.distributed.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def __init__(
        self,
        margin: float = 1.0,
        alpha: float = 1.0,
        *,
        scale: float = 1.0,
        synchronise: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(margin, alpha, scale, reduction)
        self.synchronise = synchronise

    @classmethod
    def torchlip(
        cls, min_margin: float, alpha: float, *, synchronise: bool = False, reduction: Reduction = "mean"
    ) -> Self:
        """The loss that deel-torchlip calls HKRMulticlassLoss(alpha, min_margin), equal on every batch."""
        margin, weight, scale = ours(min_margin, alpha)
        return cls(margin, weight, scale=scale, synchronise=synchronise, reduction=reduction)

    def torchlip_arguments(self) -> Torchlip:
        """deel-torchlip's parameters of this loss, up to the factor `scale`."""
        return torchlip(self.margin, self.alpha)

    def forward(self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "..."]:
        """The loss of logits against class indices."""
        kr = MulticlassKR(synchronise=self.synchronise, reduction="none")(input, target)
        hinge = MulticlassHinge(self.margin, reduction="none")(input, target)
        return self.combine(kr, hinge)
