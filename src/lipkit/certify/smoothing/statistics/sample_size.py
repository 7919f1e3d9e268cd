"""How many samples: the least number that can certify, and when enough is known to stop."""

from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Bool
from torch import Tensor

from lipkit.certify.confidence_intervals import check_level
from lipkit.certify.smoothing.event import Event, Method, Theorem
from lipkit.certify.smoothing.samples import Moments, Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.certify.smoothing.statistics.betting import BetaBinomial
from lipkit.certify.smoothing.statistics.methods import Parts, bounded, check_share
from lipkit.certify.smoothing.statistics.votes import label_of, votes_of
from lipkit.errors import ArgumentError

# Beyond this no one samples; a method that needs more is one that never certifies.
_MOST: Final = 2**40
# The lead of the winner's logit over the others: one vote up to the roundings of any map.
_CLEAR: Final = 1e6


@final
@dataclass(frozen=True)
class Anytime(Method):
    """Looks as often as it likes and stops when the target is proven, or is most likely out of reach.

    The event is that of `IntersectionUnion` with `BetaBinomial`, whose limits hold after every number of samples at
    once; so all looks together fail with probability alpha. Uses `Hardmax`. At the last sample its radius is a little
    below that of a fixed n.

    Guarantee: one event of probability >= 1 - alpha at whatever time the sampling stops. That a target is out of reach
    is not proven: the certificate is then smaller, not wrong. Reference: our combination.

    Args:
        target: The radius that is enough, in the units of the noise.
        share: The label's part of alpha, in (0, 1].
    """

    target: float
    share: float = 0.5

    def __post_init__(self) -> None:
        check_share(self.share)
        if not isinstance(self.target, int | float) or not self.target >= 0:
            raise ArgumentError(f"A target radius is a number >= 0, got {self.target!r}.")

    def event(self, samples: Samples, alpha: float, theorem: Theorem) -> Event:
        """The bounds at the time of stopping; they hold at all other times as well."""
        parts = Parts(self.share * check_level(alpha), (1 - self.share) * alpha)
        return bounded(samples, Hardmax(), parts, BetaBinomial())

    def done(self, samples: Samples, alpha: float, theorem: Theorem) -> Bool[Tensor, " batch"]:
        """Which inputs need no more samples, from the samples so far.

        The target counts as out of reach where the same limits, turned round, put the true radius below it.
        """
        proven = theorem.radius(self.event(samples, alpha, theorem)) >= self.target
        interval = BetaBinomial()
        label = label_of(samples, Hardmax())
        votes, entry = votes_of(samples, Hardmax(), label)
        best = interval.upper(votes.of(entry), alpha / 2)[:, 0]
        hoped = theorem.radius(Event(label, best, interval.lower(votes, alpha / 2), (Hardmax(),) * len(label)))
        return proven | (hoped < self.target)


def least_samples(
    method: Method, alpha: float, num_classes: int, theorem: Theorem, maps: tuple[SimplexMap, ...] = (Hardmax(),)
) -> int:
    """The least n at which unanimous votes certify a radius above 0: with fewer, every input is abstained on.

    For `IntersectionUnion` with share 1/2 it is the least n with (alpha/2)^(1/n) > 1/2, 11 at alpha = 0.001.
    Cost: some forty events of one input.
    """
    check_level(alpha)
    if num_classes < 2:
        raise ArgumentError(f"A classifier has two classes at least, got {num_classes}.")

    def certifies(n: int) -> bool:
        samples = _unanimous(n, num_classes, maps)
        return bool(theorem.radius(method.event(samples, alpha, theorem)) > 0)

    high = 1
    while not certifies(high):
        high *= 2
        if high > _MOST:
            raise ArgumentError(
                f"{method} certifies nothing at alpha={alpha} with {num_classes} classes, however many n."
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if certifies(middle) else (middle, high)
    return high


def _unanimous(n: int, classes: int, maps: tuple[SimplexMap, ...]) -> Samples:
    """Samples in which everybody votes for the first class."""
    winner = torch.nn.functional.one_hot(torch.tensor([0]), classes)
    counts = n * winner
    entries = torch.nn.functional.pad(winner, (0, 1)).double()
    moments = tuple(
        Moments(one, n * one.mass * entries, n * one.mass**2 * entries) for one in maps if not isinstance(one, Hardmax)
    )
    logits = (_CLEAR * winner.float())[:, None].expand(1, 2, classes)
    return Samples(logits, counts, counts.sum(1), torch.arange(classes)[None], moments, maps)
