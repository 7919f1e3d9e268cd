"""One step to the boundary: the best attack there is on a signed distance function."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.certify.attacks._base import Attack
from lipkit.certify.attacks.attacked_model import Victim
from lipkit.certify.attacks.neighbourhood import Neighbourhood, per_sample
from lipkit.certify.attacks.objectives import Margin
from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True)
class BoundaryStep(Attack):
    """z = x - (1 + overshoot) m(x) d/||g||_*, with the margin m, its gradient g and <g, d> = ||g||_*, ||d|| = 1.

    In l2 this is z = x - (1 + overshoot) m g/||g||^2. For a signed distance function f (give the model as
    `TwoClasses(f)`) it is x - (1 + overshoot) f(x) grad f(x), which lands on the boundary at distance |f(x)|: no attack
    does better, and the certificate |f(x)| is exact. It is exact as well for affine maps with two classes, in l1, l2
    and linf; elsewhere it is one Newton step. `overshoot` crosses the boundary, on which there is only a tie.

    Guarantee: inside the ball, as for every `Attack`. Where g = 0, the point does not move. Cost: two passes.
    Reference: corollary 3 in chapter 4 of Béthune 2024 for signed distances; Moosavi-Dezfooli et al. 2016 for the step.

    Args:
        overshoot: Share by which the step goes beyond the boundary.
    """

    overshoot: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.overshoot) and self.overshoot >= 0):
            raise ArgumentError(f"BoundaryStep needs a finite overshoot >= 0, got {self.overshoot}.")

    @property
    def name(self) -> str:
        """In words."""
        return "one step to the boundary"

    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        seen = victim.look(near.center, labels, Margin())
        # The objective is minus the margin, so its gradient points to the boundary.
        steepest = shortest_step(seen.gradient.to(torch.float64), self.p)
        length = seen.margin.to(torch.float64).clamp(min=0) * (1 + self.overshoot)
        return near.center.to(torch.float64) + steepest * per_sample(length, steepest)


def shortest_step(gradient: Float64[Tensor, "n ..."], p: float) -> Float64[Tensor, "n ..."]:
    """The shortest u with <gradient, u> = 1: g/||g||^2, sign(g)/||g||_1 or the largest entry alone; 0 where g = 0."""
    flat = gradient.flatten(1)
    # In units of the largest entry nothing under- or overflows.
    size = flat.abs().amax(1, keepdim=True)
    still = size == 0
    unit = flat / size.masked_fill(still, 1.0)
    match p:
        case 2.0:
            found = unit / unit.square().sum(1, keepdim=True).masked_fill(still, 1.0)
        case math.inf:
            found = unit.sign() / unit.abs().sum(1, keepdim=True).masked_fill(still, 1.0)
        case _:
            top = unit.abs().argmax(1, keepdim=True)
            found = torch.zeros_like(unit).scatter(1, top, unit.gather(1, top).sign())
    return (found / size.masked_fill(still, 1.0)).view_as(gradient)
