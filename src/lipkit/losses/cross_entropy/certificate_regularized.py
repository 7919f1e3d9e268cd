"""Cross-entropy with a bounded price on every missing piece of certified radius."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.losses._base import Loss, Number, Reduction, wide
from lipkit.losses.cross_entropy.crm import rival_radii
from lipkit.losses.pair_constants import Constants


@final
class CertificateRegularized(Loss):
    """CE(z, y) + weight (1 - clip(R / radius, 0, 1)),   R = min_{j != y} (z_y - z_j) / K_yj.

    The price is 0 for samples certified at `radius` and `weight` for wrong ones, which get no gradient from it, as do
    samples beyond the radius; in between it is linear in R. Constants as in `LipschitzMargin`, with gradients.

    Promise: the mean price is weight (1 - mean certified radius / radius), with radii cut at `radius`, so it never
    rewards a large radius of one sample with the loss of another's beyond that cut. Cost: one pass.
    Reference: ours; the hard minimum of what `CRM(Truncated(radius))` smooths.

    Args:
        radius: Radius that is asked for, in the norm of the constants.
        weight: Price of a sample without any certified radius.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    radius = Number(0.0, open_low=True)
    weight = Number(0.0)

    def __init__(self, radius: float, *, weight: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction, radius=radius, weight=weight)

    def forward(
        self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], constants: Constants
    ) -> Float[Tensor, "..."]:
        """The loss of logits against class indices, given the constants of their differences."""
        logits = wide(input)
        missing = 1.0 - (rival_radii(logits, target, constants).amin(1) / self.radius).clamp(0.0, 1.0)
        losses = functional.cross_entropy(logits, target.long(), reduction="none") + self.weight * missing
        return self.reduce(losses.to(logits.dtype))
