"""Ways to spend one error probability on the share of the label and on those of its rivals."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from lipkit.certify.confidence_intervals import check_level
from lipkit.certify.smoothing.event import Event, Method, Theorem
from lipkit.certify.smoothing.samples import Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.certify.smoothing.statistics.intervals import ClopperPearson, EmpiricalBernstein, Interval, SubGaussian
from lipkit.certify.smoothing.statistics.votes import Votes, by_class, label_of, selection_votes, votes_of
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8, UNIT_OF


@final
@dataclass(frozen=True)
class IntersectionUnion(Method):
    """A part of alpha for the label, and the rest for every rival at once: the default.

        p_label >= lower(label; share alpha),    p_k <= min(upper(k; (1 - share) alpha), 1 - lower)  for all k.

    Each rival has all of (1 - share) alpha, whatever their number: only the bound of the rival that is nearest in truth
    has to hold (see `Event`). So at equal counts and share 1/2 no radius is below that of `Bonferroni` or
    `ClassPartition`. With share 1 it is `Cohen`.

    Guarantee: one event of probability >= 1 - alpha, rounding included. Reference: our derivation.

    Args:
        share: The label's part of alpha, in (0, 1].
        interval: The limits; without one, `ClopperPearson` for `Hardmax` and `EmpiricalBernstein` for other maps.
    """

    share: float = 0.5
    interval: Interval | None = None

    def __post_init__(self) -> None:
        check_share(self.share)

    def event(self, samples: Samples, alpha: float, theorem: Theorem) -> Event:
        parts = Parts(self.share * check_level(alpha), (1 - self.share) * alpha)
        return bounded(samples, samples.maps[0], parts, self.interval)


@final
@dataclass(frozen=True)
class Cohen(Method):
    """All of alpha for the label: p_k <= 1 - lower(label; alpha). Certifies only shares above 1/2.

    Reference: Cohen, Rosenfeld, Kolter, ICML 2019.
    """

    interval: Interval | None = None

    def event(self, samples: Samples, alpha: float, theorem: Theorem) -> Event:
        return bounded(samples, samples.maps[0], Parts(check_level(alpha), 0.0), self.interval)


@final
@dataclass(frozen=True)
class Bonferroni(Method):
    """alpha/c for each of c classes, so that all bounds hold together. A baseline: `IntersectionUnion` needs no union.

    Reference: section 6.1.2 of Delattre 2025.
    """

    interval: Interval | None = None

    def event(self, samples: Samples, alpha: float, theorem: Theorem) -> Event:
        part = check_level(alpha) / samples.counts.shape[1]
        return bounded(samples, samples.maps[0], Parts(part, part), self.interval)


@final
@dataclass(frozen=True)
class ClassPartition(Method):
    """alpha/c* for each of c* groups of classes: the label, its likely rivals one by one, and all others together.

    The samples that choose have the groups: classes leave the last group, the largest first, until it has no more votes
    than the runner-up. A class is at most its group. Uses `Hardmax`. A baseline: `IntersectionUnion` is never below.

    Reference: algorithm 8 (CPM) of Delattre 2025; the cap 1 - lower is ours.
    """

    def event(self, samples: Samples, alpha: float, theorem: Theorem) -> Event:
        """The bounds of all groups together."""
        interval_for(samples, Hardmax(), None)
        label, alone = _partition(samples)
        groups = 1 + alone.sum(1) + (1 + alone.sum(1) < alone.shape[1]).long()
        together = ~alone.scatter(1, label[:, None], True)
        rest = torch.where(together, samples.counts, 0).sum(1, keepdim=True)
        counts = torch.where(together, rest, samples.counts).double()
        lower, upper = torch.zeros_like(counts[:, 0]), torch.ones_like(counts)
        for number in groups.unique().tolist():
            rows = groups == number
            votes = Votes(counts[rows], counts[rows], samples.spent[rows])
            part = check_level(alpha) / number
            lower[rows], upper[rows] = limits(votes, label[rows], Parts(part, part), ClopperPearson())
        return capped(label, lower, upper, Hardmax())


def _partition(samples: Samples) -> tuple[Int64[Tensor, " batch"], Bool[Tensor, "batch classes"]]:
    """The label, and which rivals are a group of their own."""
    label = label_of(samples, Hardmax())
    chosen = selection_votes(samples, Hardmax()).total.scatter(1, label[:, None], -1.0)
    sizes, order = chosen.sort(dim=1, descending=True, stable=True)
    rivals = sizes[:, :-1]
    # Votes that are left together after the first 1, 2, ... rivals have left.
    left = rivals.sum(1, keepdim=True) - rivals.cumsum(1)
    # The runner-up leaves anyway; each next one leaves while there are more votes left together than it has.
    leaves = torch.cat([torch.ones_like(left[:, :1], dtype=torch.bool), left[:, :-1] > rivals[:, :1]], 1)
    return label, torch.zeros_like(chosen, dtype=torch.bool).scatter(1, order[:, :-1], leaves)


@final
@dataclass(frozen=True)
class Parts:
    """How the error probability is spent: on the lower bound of the label, and on the upper bound of each rival."""

    label: float
    rival: float


def check_share(share: float) -> None:
    """Refuses what is no part of alpha."""
    if not 0 < share <= 1:
        raise ArgumentError(f"The label's share of alpha lies in (0, 1], got {share}.")


def bounded(samples: Samples, simplex: SimplexMap, parts: Parts, interval: Interval | None) -> Event:
    """The event of one map in which the label and any fixed rival fail with probability `label` + `rival` at most."""
    interval = interval_for(samples, simplex, interval)
    label = label_of(samples, simplex)
    votes, entry = votes_of(samples, simplex, label)
    lower, upper = limits(votes, entry, parts, interval)
    return capped(label, lower, by_class(samples, simplex, upper), simplex)


def limits(
    votes: Votes, entry: Int64[Tensor, " batch"], parts: Parts, interval: Interval
) -> tuple[Float64[Tensor, " batch"], Float64[Tensor, "batch entries"]]:
    """A lower limit for one entry of each input, and upper limits for all."""
    # The parts are rounded: a hair less, so that they do not sum to more than alpha.
    lower = interval.lower(votes.of(entry), parts.label * (1 - ROUNDINGS_8))[:, 0]
    if not parts.rival:
        return lower, torch.ones_like(votes.total)
    return lower, interval.upper(votes, parts.rival * (1 - ROUNDINGS_8))


def interval_for(samples: Samples, simplex: SimplexMap, interval: Interval | None) -> Interval:
    """The interval for the votes of this map, if it is valid for these samples."""
    if interval is None:
        interval = ClopperPearson() if isinstance(simplex, Hardmax) else EmpiricalBernstein()
    if isinstance(interval, SubGaussian) and interval.constant < 0.5 and isinstance(simplex, Hardmax):
        raise ArgumentError(
            f"Votes of Hardmax jump, so no Lipschitz constant bounds how much they scatter, got {interval}; use "
            "ClopperPearson, or a map with a constant such as rs.Softmax()."
        )
    if samples.adaptive and not interval.anytime:
        raise ArgumentError(
            f"The votes chose the number of these samples, and {type(interval).__name__} needs a fixed number; "
            "use the method that they were drawn with, or draw again."
        )
    return interval


def capped(
    label: Int64[Tensor, " batch"],
    lower: Float64[Tensor, " batch"],
    upper: Float64[Tensor, "batch classes"],
    simplex: SimplexMap,
) -> Event:
    """The event of these limits, with every rival at most 1 - `lower`, as all shares sum to 1."""
    # Votes of other maps than Hardmax are in float32, and sum to 1 up to roundings of c terms. The label loses those;
    # then its share and the rest sum to 1. The difference 1 - `lower` is exact above 1/2, where it matters.
    slack = 0.0 if isinstance(simplex, Hardmax) else (upper.shape[1] + 16) * UNIT_OF[torch.float32]
    lower = (lower - slack).clamp(min=0.0)
    rest = 1 - lower
    upper = torch.minimum(upper, rest[:, None]).scatter(1, label[:, None], 1.0)
    return Event(label, lower, upper, (simplex,) * len(label))
