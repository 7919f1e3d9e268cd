"""LVM-RS: for each input the map whose votes promise the largest radius."""

import dataclasses
from dataclasses import dataclass
from typing import final

import torch

from lipkit.certify.confidence_intervals import check_level
from lipkit.certify.smoothing.event import Event, Method, Theorem
from lipkit.certify.smoothing.samples import Moments, Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.certify.smoothing.statistics.intervals import Interval
from lipkit.certify.smoothing.statistics.methods import Parts, bounded, check_share
from lipkit.certify.smoothing.statistics.votes import selection_votes


@final
@dataclass(frozen=True)
class LowVariance(Method):
    """For each input the declared map with the largest radius that one may expect, then `IntersectionUnion` with it.

    The votes of a soft map scatter less, those of a hard one have larger margins. The samples that choose say what the
    other n would prove with each map if they looked alike. So the choice is a constant for those n, and costs no alpha.

    Guarantee: one event of probability >= 1 - alpha. Cost: every declared map on the n0 logits.
    Reference: algorithm 9 of Delattre 2025, with its formulas repaired (see errata.md).

    Args:
        share: The label's part of alpha, in (0, 1].
        interval: The limits; without one, `ClopperPearson` for `Hardmax` and `EmpiricalBernstein` for other maps.
    """

    share: float = 0.5
    interval: Interval | None = None

    def __post_init__(self) -> None:
        check_share(self.share)

    def event(self, samples: Samples, alpha: float, theorem: Theorem) -> Event:
        """The event of each input's best map."""
        parts = Parts(self.share * check_level(alpha), (1 - self.share) * alpha)
        events = [bounded(samples, one, parts, self.interval) for one in samples.maps]
        promised = [bounded(expected(samples, one), one, parts, self.interval) for one in samples.maps]
        best = torch.stack([theorem.radius(event) for event in promised]).argmax(0)
        rows = torch.arange(len(best), device=best.device)
        return Event(
            torch.stack([event.label for event in events])[best, rows],
            torch.stack([event.lower for event in events])[best, rows],
            torch.stack([event.upper for event in events])[best, rows],
            tuple(samples.maps[one] for one in best.tolist()),
        )


def expected(samples: Samples, simplex: SimplexMap) -> Samples:
    """The samples that one may expect: n votes with the means and variances of the n0 that choose."""
    n = samples.spent[:, None].double()
    if isinstance(simplex, Hardmax):
        chosen = selection_votes(samples, simplex)
        return dataclasses.replace(samples, counts=(chosen.total / chosen.trials[:, None] * n).round().long())
    votes = simplex(samples.selection).double()
    tracked = votes.gather(2, samples.tracked[:, None].expand(-1, votes.shape[1], -1))
    votes = torch.cat([tracked, votes.sum(2, keepdim=True) - tracked.sum(2, keepdim=True)], 2)
    # One sample alone has no variance: as if it could be anything.
    variance = votes.var(1) if votes.shape[1] > 1 else torch.full_like(votes[:, 0], simplex.mass**2 / 4)
    mean = votes.mean(1)
    second = variance * (n - 1) + mean.square() * n
    return dataclasses.replace(samples, moments=(Moments(simplex, mean * n, second),))
