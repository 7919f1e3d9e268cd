"""Ways to spend one error probability on the share of the label and on those of its rivals."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.certify.confidence_intervals import check_level
from lipkit.certify.smoothing.event import Event, Method, Theorem
from lipkit.certify.smoothing.intervals import ClopperPearson, EmpiricalBernstein, Interval
from lipkit.certify.smoothing.samples import Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.certify.smoothing.votes import by_class, label_of, votes_of
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8, ULP, UNIT_OF


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
        if not 0 < self.share <= 1:
            raise ArgumentError(f"The label's share of alpha lies in (0, 1], got {self.share}.")

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
class Parts:
    """How the error probability is spent: on the lower bound of the label, and on the upper bound of each rival."""

    label: float
    rival: float


def bounded(samples: Samples, simplex: SimplexMap, parts: Parts, interval: Interval | None) -> Event:
    """The event of one map in which the label and any fixed rival fail with probability `label` + `rival` at most."""
    interval = interval_for(samples, simplex, interval)
    label = label_of(samples, simplex)
    votes, place = votes_of(samples, simplex, label)
    # The parts are products of floats: a hair less, so that they do not sum to more than alpha.
    lower = interval.lower(votes.of(place), parts.label * (1 - ROUNDINGS_8))[:, 0]
    upper = torch.ones_like(votes.total)
    if parts.rival > 0:
        upper = interval.upper(votes, parts.rival * (1 - ROUNDINGS_8))
    upper = by_class(samples, simplex, upper)
    upper = torch.minimum(upper, rest_of(lower, simplex, upper.shape[1])[:, None]).scatter(1, label[:, None], 1.0)
    return Event(label, lower, upper, (simplex,) * len(label))


def interval_for(samples: Samples, simplex: SimplexMap, interval: Interval | None) -> Interval:
    """The interval for the votes of this map, if it is valid for these samples."""
    if interval is None:
        interval = ClopperPearson() if isinstance(simplex, Hardmax) else EmpiricalBernstein()
    if samples.adaptive and not interval.anytime:
        raise ArgumentError(
            f"The votes chose the number of these samples, and {type(interval).__name__} needs a fixed number; "
            "use the method that they were drawn with, or draw again."
        )
    return interval


def rest_of(lower: Float64[Tensor, " batch"], simplex: SimplexMap, classes: int) -> Float64[Tensor, " batch"]:
    """An upper bound of every rival's share, as all shares sum to 1.

    Votes of maps other than `Hardmax` are numbers in float32, which sum to 1 up to the roundings of c terms.
    """
    slack = ULP if isinstance(simplex, Hardmax) else (classes + 16) * UNIT_OF[torch.float32]
    return (1 - lower + slack).clamp(max=1.0)
