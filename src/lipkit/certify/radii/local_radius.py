"""Radii from what a network does near each single sample, where its constant on the whole space says too little."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Fingerprint, Kind, Metric, Scope
from lipkit.bounds import Relaxation
from lipkit.bounds.local.label_margins import LabelMargins, MarginsOnBall
from lipkit.certify.radii.forward import Forward, Logits
from lipkit.certify.radii.radius import radius
from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, TooLargeError, UnsupportedError
from lipkit.regions import Ball
from lipkit.rounding.float64 import log_up

# A ball is larger than the radius it is to prove by a millionth, because certified radii lie strictly inside.
_WIDER = 1 + 2.0**-20
# What a constant must prove of the radius of its ball: more than the radius asked for, less than the edge.
_ENOUGH = 1 - 2.0**-21


@final
class LocalProof(enum.Enum):
    """How a radius near a sample was proven."""

    MARGINS = "linear relaxation of the margins"
    ENTRIES = "intervals of the derivatives of the margins"
    SLOPES = "uncertain slopes behind the margins"


@final
@dataclass(frozen=True)
class LocalRadius:
    """A radius in which the label of one sample is proven, by what holds on the `ball` around it.

    `proof` is None, and `ball` 0, where the constant of the whole space proves more.
    """

    value: float
    ball: float = 0.0
    proof: LocalProof | None = None


@final
@dataclass(frozen=True)
class LocalRadii:
    """A search for larger radii: at each radius asked for, the margins on the ball around the sample.

    On the ball of radius R around x the label y is proven up to the largest of

        margins    R, if a linear relaxation gives z_y - z_j > 0 on the whole ball for all j,
        entries    min_j (z_y - z_j)(x) / K_j, K_j the dual norm of an interval for each derivative (`FastLip`),
        slopes     the same with K_j from the slopes that are uncertain on the ball (`Condensed`),

    tried in this order until R itself is proven; the last two are cut at R. Only samples that the constant of the whole
    space does not prove are looked at, from the smallest radius up to the first that fails.

    Guarantee: LOWER, all rounding counted, nothing drawn. `margins` takes every node; the other two take pointwise
    ones, so a network with pooling by maxima, softmax or sorting has the first alone.
    Cost for each sample and radius: the ranges by `relaxation`; a factorisation with a side of as many uncertain slopes
    for each class that is still open.
    Reference: Weng et al. 2018 and Zhang et al. 2018 for the relaxation; the rest as in `FastLip` and `Condensed`.

    Args:
        seconds: No further ball or proof is begun for a sample after so many; one that was begun ends.
        bisections: Further balls for each sample, between the largest radius proven and the smallest that is not, to
            find how far it is certified; beyond the radii asked for they double.
        relaxation: Gives the ranges of all values on a ball.
    """

    seconds: float = 10.0
    bisections: int = 0
    relaxation: Relaxation = field(default_factory=Relaxation)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ArgumentError(f"LocalRadii.seconds is the time for one sample, > 0, got {self.seconds}.")
        if type(self.bisections) is not int or self.bisections < 0:
            raise ArgumentError(f"LocalRadii.bisections is a whole number >= 0, got {self.bisections!r}.")

    def prepare(self, forward: Forward, p: float) -> "LocalSearch":
        """The search on a network, for radii in l_`p`. Cost: bookkeeping."""
        with torch.no_grad():
            return LocalSearch(self, LabelMargins(forward.network, self.relaxation), p, forward.subject)


@final
@dataclass(frozen=True, eq=False)
class LocalSearch:
    """The search on one network; samples are given one by one, without batch axis, with logits of one row."""

    settings: LocalRadii
    margins: LabelMargins
    p: float
    subject: Fingerprint

    def enlarge(
        self, x: Float[Tensor, "..."], label: int, logits: Logits, start: float, eps: Sequence[float]
    ) -> LocalRadius:
        """The largest radius that is proven for a sample which has the radius `start` already."""
        best, end = LocalRadius(start), monotonic() + self.settings.seconds
        if not _leads(logits, label):
            return best
        failed = math.inf
        for e in eps:
            if best.value <= e and monotonic() < end:
                ball = max(e * _WIDER, math.ulp(0.0))
                found = self._prove(x, label, logits, ball, None, end)
                best = max(best, found, key=lambda one: one.value)
                if best.value <= e:
                    failed = ball
                    break
        for _ in range(self.settings.bisections):
            ball = 2 * max(best.value, eps[-1]) if math.isinf(failed) else (best.value + failed) / 2
            if not best.value < ball < failed or monotonic() >= end:
                break
            found = self._prove(x, label, logits, ball, None, end)
            best = max(best, found, key=lambda one: one.value)
            if found.value < ball * _ENOUGH:
                failed = ball
        return best

    def repeat(
        self, x: Float[Tensor, "..."], label: int, logits: Logits, ball: float, proof: LocalProof
    ) -> LocalRadius:
        """The radius that one kind of proof gives on one ball: what `enlarge` found, computed again."""
        if not _leads(logits, label):
            return LocalRadius(0.0)
        return self._prove(x, label, logits, ball, proof, math.inf)

    def _prove(
        self, x: Tensor, label: int, logits: Logits, size: float, only: LocalProof | None, end: float
    ) -> LocalRadius:
        """The first proof that reaches the edge of the ball, or the best of all; or that of one kind."""
        best, ball = LocalRadius(0.0), Ball(x.detach().to(torch.float64), size, self.p)
        try:
            with torch.no_grad():
                near = self.margins.on(ball, label)
                if only in (None, LocalProof.MARGINS) and bool((near.least > 0).all()):
                    return LocalRadius(size, size, LocalProof.MARGINS)
                if only is LocalProof.MARGINS:
                    return best
                constants = near.by_entries()
                found = self._value(x, label, logits, near, constants)
                best = LocalRadius(float(found), size, LocalProof.ENTRIES)
                if only is LocalProof.ENTRIES or (only is None and best.value >= size * _ENOUGH):
                    return best
                sharper = self._sharpen(x, label, logits, near, constants, end)
                if sharper is not None and (only is not None or sharper > best.value):
                    best = LocalRadius(sharper, size, LocalProof.SLOPES)
        except (UnsupportedError, NonFiniteError, NotProvenError, TooLargeError):
            # Nodes that these proofs do not take, slopes without bound, or too many of them: what was proven stays.
            return best
        return best

    def _sharpen(
        self, x: Tensor, label: int, logits: Logits, near: MarginsOnBall, constants: Float64[Tensor, " others"],
        end: float,
    ) -> float | None:  # fmt: skip
        """The radius with better constants of the classes that are still near, until one is too near all the same."""
        z = logits.value[0]
        gaps = (z[label] - z)[list(near.others)] - 2 * logits.error[0]
        better = constants.clone()
        for place in (gaps / constants).argsort().tolist():
            if monotonic() >= end:
                return None
            if gaps[place] >= better[place] * near.ball.radius:
                break
            better[place] = torch.minimum(better[place], near.by_slopes(place))
            if gaps[place] < better[place] * near.ball.radius:
                break
        return self._value(x, label, logits, near, better)

    def _value(
        self, x: Tensor, label: int, logits: Logits, near: MarginsOnBall, constants: Float64[Tensor, " others"]
    ) -> float:
        """The radius by constants of the margins over all other classes."""
        row = constants.new_zeros(len(constants) + 1)
        row[list(near.others)] = constants
        # Two others differ by two margins, so their constant is at most the sum.
        table = row[:, None] + row[None, :]
        table.fill_diagonal_(0.0)
        bound = Bound(
            log_up(table), Kind.UPPER, self.settings, Metric(self.p, self.p), near.ball, Scope.PAIR,
            subject=self.subject,
        )  # fmt: skip
        labels = torch.tensor([label], device=logits.value.device)
        return float(radius(logits, labels, bound, at=x[None]).value)


def _leads(logits: Logits, label: int) -> bool:
    """Whether the label's logit is the largest for sure; otherwise no radius can be proven."""
    z, error = logits.value[0], float(logits.error[0])
    rivals = z.clone()
    rivals[label] = -math.inf
    return float(z[label] - rivals.max()) > 2 * error
