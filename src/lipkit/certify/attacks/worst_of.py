"""Several attacks one after the other, and for each sample the worst that any of them found."""

from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from lipkit._seeds import derive_seed
from lipkit.certify.attacks._base import Attack
from lipkit.certify.attacks.attacked_model import Victim
from lipkit.certify.attacks.boundary_step import BoundaryStep
from lipkit.certify.attacks.neighbourhood import Neighbourhood
from lipkit.certify.attacks.objectives import EveryClass, Margin
from lipkit.certify.attacks.pgd import PGD
from lipkit.certify.attacks.step_sizes import Constant
from lipkit.errors import ArgumentError


def usual_attacks(steps: int = 40, restarts: int = 1) -> tuple[Attack, ...]:
    """A step to the boundary, and gradients of three objectives with two kinds of steps; cheap ones first.

    In this order: one step to the boundary; cross-entropy with steps that halve; the margin, from `restarts` starts;
    cross-entropy with steps of one length; the margin to each wrong class in turn. Cost: classes + 1 + `restarts` runs
    of `steps`, over the samples that still stand.
    """
    # The radius is that of whoever runs them.
    step = PGD(0.0, steps=steps)
    return (
        BoundaryStep(0.0),
        step,
        replace(step, objective=Margin(), restarts=restarts),
        replace(step, schedule=Constant()),
        replace(step, objective=EveryClass()),
    )


@final
@dataclass(frozen=True)
class WorstOf(Attack):
    """The worst of several attacks, sample by sample; those that one has broken are left out of the later ones.

    One search alone can be held up by what its objective does not see: a sure model, a corner between two rivals, a
    step that is too long. So several that fail for different reasons are put together. Radius, norm and box are those
    of the whole; the fields of its parts for these are not looked at.

    Guarantee: inside the ball, as for every `Attack`; of all points that the parts end with, the one with the smallest
    margin. Cost: the sum of the parts over the samples that still stand.
    Reference: the ensemble of Croce, Hein 2020 (AutoAttack) is the idea; these parts are ours.

    Args:
        attacks: At least one; by default those of `usual_attacks`.
    """

    attacks: tuple[Attack, ...] = field(default_factory=usual_attacks)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.attacks or not all(isinstance(one, Attack) for one in self.attacks):
            raise ArgumentError(f"WorstOf needs at least one attack, such as PGD(0.5), got {self.attacks!r}.")

    @property
    def name(self) -> str:
        """In words."""
        return f"the worst of {len(self.attacks)} attacks"

    @property
    def settings(self) -> str:
        """The parts with their settings."""
        return "; ".join(f"{one.name}{one.settings and f': {one.settings}'}" for one in self.attacks)

    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        best = near.center.clone()
        margin = victim.margin(best, labels)
        for number, attack in enumerate(self.attacks):
            rows = (margin >= 0).nonzero().squeeze(1)
            if not len(rows):
                break
            part = near.take(rows)
            own = replace(attack, eps=self.eps, p=self.p, low=self.low, high=self.high)
            # The first draws what it would draw alone.
            drawn = seed if number == 0 else derive_seed(seed, number)
            found = part.project(own._search(victim, part, labels[rows], drawn).detach())
            after = victim.margin(found, labels[rows])
            better = after < margin[rows]
            best[rows[better]], margin[rows[better]] = found[better], after[better]
        return best
