"""Training that enlarges certified radii: the radius, its smooth form, and the loss."""

import math
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.losses._base import LiveNumber, Loss, Number, Reduction, wide
from lipkit.losses.cross_entropy.radius_goals import RadiusGoal
from lipkit.losses.margins import check_classes, check_probabilities, leads, margins, of_label, rivals
from lipkit.losses.pair_constants import Constants, label_constants


def rival_radii(
    logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], constants: Constants
) -> Float[Tensor, "batch classes"]:
    """(z_y - z_j) / K_yj for every rival j, and +inf at the own class; negative where the rival leads.

    For training: evaluated to nearest, and constants below 1e-19 (in float64 1e-154) count as that, so that a rival
    that cannot move is far away instead of infinitely far. Certificates come from `lipkit.certify`.
    """
    lead = leads(logits, target)
    own = ~rivals(target, logits.shape[1])
    rows = label_constants(constants, target, logits.shape[1])
    return (lead / rows.clamp(min=math.sqrt(torch.finfo(rows.dtype).tiny))).masked_fill(own, math.inf)


def soft_radius(
    logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], constants: Constants, temperature: float
) -> Float[Tensor, " batch"]:
    """R_t = -(1/t) log sum_{j != y} exp(-t (z_y - z_j) / K_yj): a smooth minimum of the radii against all rivals.

    Promise: R_t <= R <= R_t + log(K - 1) / t for R = min_{j != y} (z_y - z_j) / K_yj, up to rounding. Differentiable in
    logits and constants. Cost: one pass. Reference: Fazlyab et al. 2023, proposition 1.
    """
    if not 0.0 < temperature < math.inf:
        raise ArgumentError(f"The temperature of the smooth minimum is a finite number > 0, got {temperature}.")
    return _smooth_minimum(rival_radii(wide(logits), target, constants), temperature)


def _smooth_minimum(radii: Float[Tensor, "batch classes"], temperature: float) -> Float[Tensor, " batch"]:
    return -(-temperature * radii).logsumexp(1) / temperature


@final
class CRM(Loss):
    """Cross-entropy, plus weight g(R_t) for the samples that are classified correctly.

        CE(z, y) + weight 1[z_y > max_{j != y} z_j] g(R_t)

    g is a `RadiusGoal` (`DecayingRadius(r0)`: exp(-r / r0); `Truncated(r0)`: -min(r, r0); `RadiusUpTo(r0)`: -r while R
    < r0) or any decreasing function; R_t is `soft_radius` at `temperature`. The indicator is not differentiated.
    Constants as in `LipschitzMargin`, which receive gradients: pulling constants down and margins up both enlarge
    radii.

    Soft labels p (of a teacher, or of mixed images) give sum_y p_y loss(z, y), as in `EMMA`: the cross-entropy against
    p, plus weight p_a g(R_t) for the class a that leads. Only this class counts as correct, so one radius is enough.

    Promise: none for a number; minimising it enlarges a lower bound of the certified radius. Cost: one pass, no attack.
    Reference: Fazlyab, Entesari, Roy, Chellappa 2023.

    Args:
        goal: Worth of a radius: a `RadiusGoal`, or any decreasing function of a tensor of radii.
        weight: Factor on the worth.
        temperature: Sharpness t of the smooth minimum, per unit of radius: R_t is off by log(K - 1) / t at most.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    weight = LiveNumber(0.0)
    temperature = Number(0.0, open_low=True)

    def __init__(
        self,
        goal: RadiusGoal | Callable[[Tensor], Tensor],
        *,
        weight: float | Tensor = 1.0,
        temperature: float = 10.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction, weight=weight, temperature=temperature)
        self.goal = goal

    def forward(
        self,
        input: Float[Tensor, "batch classes"],
        target: Int[Tensor, " batch"] | Float[Tensor, "batch classes"],
        constants: Constants,
    ) -> Float[Tensor, "..."]:
        """The loss of logits against class indices or probabilities, given the constants of their differences."""
        logits = wide(input)
        if target.is_floating_point():
            check_probabilities(logits, target)
            labels = logits.detach().argmax(1)
            aims, share = target.to(logits.dtype), of_label(target, labels)
        else:
            check_classes(logits, target)
            labels, aims, share = target, target.long(), 1.0
        radii = rival_radii(logits, labels, constants)
        counts = margins(logits.detach(), labels) > 0
        if isinstance(self.goal, RadiusGoal):
            counts = counts & ~self.goal.enough(radii.detach().amin(1))
        # Radii of other samples are replaced before g: exp of a large negative one would be inf, and inf * 0 NaN.
        radius = torch.where(counts, _smooth_minimum(radii, self.temperature), 0.0)
        worth = torch.where(counts, self.goal(radius), 0.0)
        losses = functional.cross_entropy(logits, aims, reduction="none") + self.weight * share * worth
        return self.reduce(losses.to(logits.dtype))
