"""What attacks prove about epsilon from below: scores of canaries that were trained on, and of others that were not."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from lipkit.certify.confidence_intervals import check_level, lower_limit, upper_limit
from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.privacy.accounting._base import check_delta

# Shares of the canaries that are guessed; each is one more hypothesis, for which the failure is divided.
_SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
_LARGEST = 64.0
_CLOSE = 1e-6
_Scores = Float64[np.ndarray, "_"]


class Design(ABC):
    """How the canaries came to be inside or outside, on which the proof rests."""

    @abstractmethod
    def lower_bound(self, inside: _Scores, outside: _Scores, delta: float, failure: float) -> float:
        """A number that exceeds epsilon with probability `failure` at most."""


@final
@dataclass(frozen=True)
class OneRun(Design):
    """One training: each of m canaries was put in by its own fair coin, so the two numbers are random as well.

    The k/2 highest scores are guessed to be inside and the k/2 lowest outside. If the training is
    (epsilon, delta)-private, the number W of right guesses satisfies for every v

        P(W >= v) <= P(B >= v) + delta m max over i = 1..m of (2/i) P(v > B >= v - i),
        B ~ Binomial(k, e^epsilon / (1 + e^epsilon)).

    The largest epsilon that this contradicts is returned. Seven values of k are tried, each at a seventh of the failure
    probability, so the choice is paid for. Canaries must not depend on each other's coins.

    Reference: theorem 5.2 of Steinke, Nasr, Jagielski 2023.
    """

    def lower_bound(self, inside: _Scores, outside: _Scores, delta: float, failure: float) -> float:
        scores = np.concatenate([inside, outside])
        truth = np.concatenate([np.ones(len(inside), bool), np.zeros(len(outside), bool)])
        # Equal scores must not be ordered by what is to be guessed: a fixed order that knows nothing of it.
        mixed = _mixed(len(scores))
        order = mixed[np.argsort(scores[mixed], kind="stable")]
        ranked = truth[order]
        best = 0.0
        for share in _SHARES:
            half = int(len(scores) * share / 2)
            if half:
                right = int((~ranked[:half]).sum() + ranked[-half:].sum())
                best = max(best, _refuted(right, 2 * half, len(scores), delta, failure / len(_SHARES)))
        return best


@final
@dataclass(frozen=True)
class ManyRuns(Design):
    """Independent trainings: each score is of another run, in which the canary was (inside) or was not (outside).

        (TPR - delta) / FPR <= e^epsilon  for every test of "score above t", and for "below t".

    Half of the scores, in a fixed order that does not look at them, choose threshold and side; the others bound TPR
    from below and FPR from above, each at half the failure probability (Clopper, Pearson 1934). So the choice costs
    nothing, for scores that come sorted, too. Scores of one run depend on each other and must not be given here.

    Reference: Kairouz, Oh, Viswanath 2015 for the region; Nasr et al. 2021 for the audit.
    """

    def lower_bound(self, inside: _Scores, outside: _Scores, delta: float, failure: float) -> float:
        (first, members), (second, others) = halves(inside), halves(outside)
        side, threshold = _choose(first, second, delta, failure)
        hits, alarms = side * members >= threshold, side * others >= threshold
        if not hits.size or not alarms.size:
            return 0.0
        low = lower_limit(int(hits.sum()), hits.size, failure / 2)
        high = upper_limit(int(alarms.sum()), alarms.size, failure / 2)
        return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def audit(
    inside: Float[Tensor, " included"],
    outside: Float[Tensor, " left_out"],
    delta: float,
    confidence: float = 0.95,
    design: Design = OneRun(),
) -> float:
    """A lower bound of epsilon at `delta`, from scores that are meant to be higher for canaries in the training.

    Guarantee: a LOWER bound. If the training is (epsilon, delta)-private, the result exceeds epsilon with probability
    1 - confidence at most, over coins and noise. A result above the claimed epsilon refutes the claim; a result below
    it proves nothing about the training. Cost: a second for 1e5 canaries.

    Args:
        inside: Scores of canaries that were trained on.
        outside: Scores of canaries that were not.
        delta: That of the claim.
        confidence: For example 0.95.
        design: `OneRun()`, or `ManyRuns()` where each score is of another run.
    """
    delta = check_delta(delta)
    failure = 1 - check_level(confidence)
    bound = design.lower_bound(finite_scores(inside, "inside"), finite_scores(outside, "outside"), delta, failure)
    return max(0.0, bound - _CLOSE)


def finite_scores(scores: Tensor, name: str) -> Float64[np.ndarray, "..."]:
    """The scores as they are, as float64; `name` says which they are."""
    # Annotations keep arrays out of tests only, and users have them at hand.
    if not isinstance(scores, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"Scores {name} are a tensor, got {type(scores).__name__}; write torch.as_tensor(scores).")
    if not scores.numel():
        raise ArgumentError(f"An attack needs scores {name}, got none.")
    found = scores.detach().double().cpu().numpy()
    if not np.isfinite(found).all():
        raise NonFiniteError(
            f"Scores {name} are finite numbers, got NaN or infinity; leave such canaries out on both sides."
        )
    return found


def _refuted(right: int, guesses: int, canaries: int, delta: float, failure: float) -> float:
    """The largest epsilon at which so many right guesses have probability `failure` at most; 0 if there is none."""
    low, high = 0.0, _LARGEST
    if _probability(0.0, right, guesses, canaries, delta) > failure:
        return 0.0
    while high - low > _CLOSE:
        middle = (low + high) / 2
        refuted = _probability(middle, right, guesses, canaries, delta) <= failure
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _probability(epsilon: float, right: int, guesses: int, canaries: int, delta: float) -> float:
    share = 1 / (1 + math.exp(-epsilon))
    k = np.arange(right + 1)
    # P(B >= k) for k = 0..right, through the incomplete beta function.
    above = np.where(k == 0, 1.0, scipy.special.betainc(np.maximum(k, 1), guesses - k + 1, share))
    tail = float(above[right])
    most = min(right, canaries)
    i = np.arange(1, most + 1)
    inside = above[right - i] - tail
    slope = float((2 * inside / i).max()) if most else 0.0
    return tail + delta * canaries * slope


def _mixed(count: int) -> Int64[np.ndarray, "_"]:
    """An order of so many places that is always the same and knows nothing of what is there."""
    return np.random.default_rng(0).permutation(count)


def halves(rows: Float64[np.ndarray, "n ..."]) -> tuple[Float64[np.ndarray, "m ..."], Float64[np.ndarray, "k ..."]]:
    """Two parts of the scores. Every second place would not do: of sorted scores the two would be nearly the same."""
    mixed = rows[_mixed(len(rows))]
    return mixed[::2], mixed[1::2]


def _choose(inside: _Scores, outside: _Scores, delta: float, failure: float) -> tuple[float, float]:
    """The side and threshold with the best bound on these scores."""
    best = (-math.inf, 1.0, 0.0)
    if not outside.size:
        return 1.0, 0.0
    for side in (1.0, -1.0):
        members, others = np.sort(side * inside), np.sort(side * outside)
        # Quantiles of the others that an upper limit can resolve.
        for share in np.geomspace(1 / len(others), 1, 40):
            threshold = float(others[max(0, len(others) - round(len(others) * share))])
            hits = len(members) - int(np.searchsorted(members, threshold))
            alarms = len(others) - int(np.searchsorted(others, threshold))
            low = lower_limit(hits, len(members), failure / 2) - delta
            value = math.log(low / upper_limit(alarms, len(others), failure / 2)) if low > 0 else -math.inf
            best = max(best, (value, side, threshold))
    return best[1], best[2]
