"""How well attacks tell records that were trained on from others: by a threshold, or by logistic regression."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.privacy.canary_audit import finite_scores, halves

_Numbers = Float64[np.ndarray, "_"]
_Rows = Float64[np.ndarray, "_ _"]
# Below this many records on a side there is nobody to learn from and nobody to judge.
_FEWEST = 4


@final
@dataclass(frozen=True)
class Membership:
    """How well a threshold on a score tells members from others, on these samples. Estimates: nothing is proven.

    Args:
        auc: The probability that a member scores higher than another; ties count one half.
        advantage: The largest TPR - FPR over all thresholds.
        threshold: Where that is.
        rates: TPR and FPR of "score >= t" for every t among the scores, from the highest, as two rows.
    """

    auc: float
    advantage: float
    threshold: float
    rates: Float64[np.ndarray, "2 thresholds"]

    def excess(self, epsilon: float, delta: float) -> float:
        """The largest TPR - e^epsilon FPR - delta over all thresholds; above 0 beyond chance, the claim is false."""
        return float((self.rates[0] - math.exp(epsilon) * self.rates[1]).max()) - delta


def membership(inside: Float[Tensor, " members"], outside: Float[Tensor, " others"]) -> Membership:
    """The threshold attack: who scores high is guessed to be a member.

    Every (epsilon, delta)-private training has TPR <= e^epsilon FPR + delta at each threshold. Scores of one class
    alone give the figures of that class. Cost: one sort. Reference: Yeom et al. 2018.

    Args:
        inside: Scores of records that were trained on. They are meant to be higher than those outside: minus the loss,
            or the margin, not the loss; an AUC far below 1/2 says that the sign is the other one.
        outside: Scores of records that were not.
    """
    members, others = np.sort(finite_scores(inside, "inside")), np.sort(finite_scores(outside, "outside"))
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    rates = np.stack([1 - np.searchsorted(sample, thresholds) / len(sample) for sample in (members, others)])
    below = np.searchsorted(others, members) + np.searchsorted(others, members, side="right")
    best = int(np.argmax(rates[0] - rates[1]))
    advantage = max(0.0, float(rates[0, best] - rates[1, best]))
    return Membership(float(below.mean()) / (2 * len(others)), advantage, float(thresholds[best]), rates)


def learned_membership(
    inside: Float[Tensor, "members features"], outside: Float[Tensor, "others features"]
) -> Membership:
    """The attack by logistic regression: which features tell members is learnt from half of the records.

    Features are what a model shows of a record: its logits, its loss, the logit of its label. Each half of the records
    is scored by log-odds that were fitted to the other half, both sides weighing the same, so no record is judged by
    what was learnt from it: random features have an AUC of one half, however many there are. The signs of features do
    not matter. Every (epsilon, delta)-private training has TPR <= e^epsilon FPR + delta at each threshold here, too,
    because whoever attacks one record may know all others. Cost: two regressions. Reference: Shokri et al. 2017, for
    attacks that learn; Yeom et al. 2018, for what the rates say.

    Args:
        inside: Features of records that were trained on, one record a row.
        outside: Those of records that were not.
    """
    members, others = _rows(inside, "inside"), _rows(outside, "outside")
    if members.shape[1] != others.shape[1]:
        raise ShapeError(
            f"Both sides have the same features, got {members.shape[1]} inside and {others.shape[1]} outside."
        )
    scores: tuple[list[_Numbers], list[_Numbers]] = ([], [])
    (first, second), (third, fourth) = halves(members), halves(others)
    for learnt, judged in (((first, third), (second, fourth)), ((second, fourth), (first, third))):
        log_odds = _fitted(*learnt)
        for found, rows in zip(scores, judged, strict=True):
            found.append(log_odds(rows))
    return membership(*(torch.from_numpy(np.concatenate(found)) for found in scores))


def _rows(features: Tensor, name: str) -> _Rows:
    found = finite_scores(features, name)
    if found.ndim != 2 or len(found) < _FEWEST:
        raise ShapeError(
            f"Features {name} have one row for each of {_FEWEST} records or more, got the shape {found.shape}."
        )
    return found


def _fitted(members: _Rows, others: _Rows) -> Callable[[_Rows], _Numbers]:
    """The log-odds of a member: the least mean logistic loss of both sides, plus |w|^2 / (2 n), of scaled features."""
    x = np.concatenate([members, others])
    sign = np.concatenate([np.ones(len(members)), -np.ones(len(others))])
    share = 1 / (2 * np.concatenate([np.full(len(members), len(members)), np.full(len(others), len(others))]))
    middle, scale = x.mean(0), x.std(0)
    # A feature that never varies says nothing.
    scale[scale == 0] = 1.0

    def widened(rows: _Rows) -> _Rows:
        return np.concatenate([(rows - middle) / scale, np.ones((len(rows), 1))], 1)

    z = widened(x)
    ridge = np.append(np.full(x.shape[1], 1 / len(x)), 0.0)

    def loss(w: _Numbers) -> tuple[float, _Numbers]:
        margin = sign * (z @ w)
        slope = -sign * share * scipy.special.expit(-margin)
        value = float(share @ np.logaddexp(0.0, -margin)) + float(ridge @ w**2) / 2
        return value, z.T @ slope + ridge * w

    found = scipy.optimize.minimize(loss, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B")
    return lambda rows: widened(rows) @ found.x
