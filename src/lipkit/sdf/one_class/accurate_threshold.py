"""The threshold that tells labelled rows apart with the fewest mistakes."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


@final
@dataclass(frozen=True)
class AccurateThreshold:
    """The threshold with the largest accuracy on labelled scores: flag what scores below `value`.

        accuracy = (#{normal, score >= value} + #{anomaly, score < value}) / n

    Guarantee: exact on these rows. `accuracy` is an ESTIMATE, too high, of that on other rows: the threshold was chosen
    here. For a promise on false alarms take `threshold`.
    """

    value: float
    accuracy: float

    @staticmethod
    def fit(scores: Float[Tensor, " n"], labels: Int[Tensor, " n"]) -> "AccurateThreshold":
        """Try every threshold: none is flagged, all are, or those below one of the gaps between scores, at its middle.

        Of several that are best the lowest is taken, which flags the fewest rows. Cost: a sort. Reference: classical.

        Args:
            scores: Normal rows score high.
            labels: -1 and +1, or 0 and 1; class 1 is normal.
        """
        if scores.ndim != 1 or labels.shape != scores.shape or not len(scores):
            raise ShapeError(
                f"One score and one label for each of one row or more are needed, got {tuple(scores.shape)} and "
                f"{tuple(labels.shape)}."
            )
        if not bool(torch.isfinite(scores).all()):
            raise NonFiniteError("Some scores are NaN or infinite; check the model and its rows.")
        known = set(labels.unique().tolist())
        if not (known <= {-1, 1} or known <= {0, 1}):
            raise ArgumentError(f"Labels are -1 and +1, or 0 and 1, got {sorted(known)[:8]}.")
        ordered, order = scores.detach().to(torch.float64).sort()
        normal = (labels[order] > 0).long()
        # With the k lowest rows flagged, anomalies among them and normal rows among the others are right.
        right = torch.zeros(len(ordered) + 1, dtype=torch.int64, device=ordered.device)
        right[1:] = (1 - 2 * normal).cumsum(0)
        right += normal.sum()
        # Equal scores are flagged together.
        right[1:-1][ordered[1:] == ordered[:-1]] = -1
        k = int((right == right.max()).nonzero()[0])
        return AccurateThreshold(_between(ordered, k), int(right[k]) / len(ordered))


def _between(ordered: Tensor, k: int) -> float:
    """A number above the k lowest scores and at most the next one."""
    if k == 0:
        return float(ordered[0])
    below = ordered[k - 1]
    if k == len(ordered):
        return float(torch.nextafter(below, torch.full_like(below, torch.inf)))
    # By halves, for the sum of two large scores may overflow; of neighbours the middle may be rounded to the lower one.
    middle = below / 2 + ordered[k] / 2
    return float(middle if below < middle <= ordered[k] else ordered[k])
