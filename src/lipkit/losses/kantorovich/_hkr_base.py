"""The base of all forms of HKR: a margin, the weight of the hinge, a factor, and their names elsewhere."""

from abc import ABC
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.losses._base import Loss, Number, Reduction


class Torchlip(NamedTuple):
    """The parameters of one HKR loss in the convention of deel-torchlip: alpha in [0, 1), hinge at min_margin / 2."""

    min_margin: float
    alpha: float


def ours(min_margin: float, alpha: float) -> tuple[float, float, float]:
    """(margin, alpha, scale) of this library for the parameters of deel-torchlip.

    scale (-s + weight (margin - s)+) = a (margin - s)+ - (1 - a) s: weight a / (1 - a), scale 1 - a, half margin.
    """
    if not 0.0 <= alpha < 1.0:
        raise ArgumentError(f"alpha of deel-torchlip lies in [0, 1), got {alpha}; at 1 use the hinge loss alone.")
    return min_margin / 2, alpha / (1.0 - alpha), 1.0 - alpha


def torchlip(margin: float, weight: float) -> Torchlip:
    """The inverse of `ours`, up to the factor."""
    return Torchlip(2.0 * margin, weight / (1.0 + weight))


class HingedKR(Loss, ABC):
    """scale (KR + alpha hinge at margin); abstract."""

    margin = Number(0.0, open_low=True)
    alpha = Number(0.0)
    scale = Number(0.0, open_low=True)

    def __init__(self, margin: float, alpha: float, scale: float, reduction: Reduction) -> None:
        super().__init__(reduction, margin=margin, alpha=alpha, scale=scale)

    def combine(self, kr: Float[Tensor, "..."], hinge: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """scale (kr + alpha hinge), reduced."""
        return self.reduce(self.scale * (kr + self.alpha * hinge))


class RivalHKR(HingedKR, ABC):
    """HKR of the own logit and of the rivals, weighted by a temperature; abstract.

    Args:
        margin: Margin of the hinge, in units of the logits.
        alpha: Weight of the hinge against KR.
        temperature: Sharpness of the choice among rivals, per unit of the logits.
        scale: Factor on the whole loss.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    temperature = Number(0.0)

    def __init__(
        self,
        margin: float = 1.0,
        alpha: float = 1.0,
        temperature: float = 1.0,
        *,
        scale: float = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(margin, alpha, scale, reduction)
        self.temperature = temperature

    def hinged(self, signed: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-s + alpha (margin - s)+."""
        return self.alpha * (self.margin - signed).relu() - signed
