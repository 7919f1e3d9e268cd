"""From scores, radii and labels to what the page of a detector of anomalies shows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from lipkit.bound import Bound, Kind
from lipkit.certify import Moves, Proportion, certifiable_auroc
from lipkit.report.results.anomaly_contents import Alarms, CertifiedAuroc, Labelled, ScoreBars, StrangeRow

# Points of a curve, bars of a histogram, and rows of a list.
_POINTS, _BARS, _ROWS = 61, 40, 10
# Radii of a table, as parts of the longest one.
_PARTS = (0.0, 0.1, 0.2, 0.5, 1.0)
# The curve ends where an attacker of both classes leaves no more than this.
_LITTLE = 0.1
# Of the intervals of shares.
_LEVEL = 0.95


@final
@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Scores of all rows, how far each stays on its side of the threshold, which were learned from, and labels."""

    score: Float64[np.ndarray, " n"]
    radius: Float64[np.ndarray, " n"]
    learned: Bool[np.ndarray, " n"]
    labels: Int64[np.ndarray, " n"] | None

    def gather_labelled(
        self, constant: float, threshold: float, moves: Sequence[float], kept: float = 0.0
    ) -> Labelled | None:
        """Certified AUROC and decisions on the rows that were not learned from; None without labels.

        Args:
            constant: Of the scores.
            threshold: Rows that score below it are flagged.
            moves: Radii of the table; () for some that the scores suggest, and `kept`.
            kept: The length of moves against which the threshold is kept.
        """
        if self.labels is None:
            return None
        test = ~self.learned
        score, radius, anomaly = self.score[test], self.radius[test], self.labels[test] == 1
        auroc = _Auroc(torch.from_numpy(score), torch.from_numpy((~anomaly).astype(np.int64)), constant)
        end = auroc.end()
        table = tuple(moves) or tuple(sorted({*(part * end for part in _PARTS), kept}))
        end = max(end, *table)
        flagged = score < threshold
        return Labelled(
            int((~anomaly).sum()), int(anomaly.sum()),
            tuple(auroc.at(end * i / (_POINTS - 1)) for i in range(_POINTS)), tuple(map(auroc.at, table)),
            tuple(
                Alarms(r, _share(~flagged & (radius >= r), ~anomaly), _share(flagged & (radius >= r), anomaly))
                for r in table
            ),
        )  # fmt: skip

    def histogram(self) -> tuple[tuple[float, ...], tuple[ScoreBars, ...]]:
        """Edges of the bars and the counts of each kind of rows that there is."""
        edges = np.histogram_bin_edges(self.score, _BARS)
        kinds = {"rows": np.ones(len(self.score), dtype=bool)}
        if self.labels is not None:
            normal = self.labels == 0
            kinds = {
                "normal rows that were learned from": self.learned,
                "other normal rows": normal & ~self.learned,
                "anomalies": ~normal,
            }
        bars = [
            ScoreBars(name, tuple(np.histogram(self.score[kind], edges)[0].tolist())) for name, kind in kinds.items()
        ]
        return tuple(edges.tolist()), tuple(bars)

    def strangest(self) -> tuple[StrangeRow, ...]:
        """The rows with the lowest scores, the strangest first."""
        found = np.argsort(self.score, kind="stable")[:_ROWS].tolist()
        return tuple(
            StrangeRow(
                i, None if self.labels is None else int(self.labels[i]), bool(self.learned[i]), float(self.score[i]),
                float(self.radius[i]),
            )
            for i in found
        )  # fmt: skip


@final
class _Auroc:
    """The certified AUROC of scores at any radius."""

    def __init__(self, scores: torch.Tensor, normal: torch.Tensor, constant: float) -> None:
        self._scores, self._normal = scores, normal
        self._bound = Bound.from_value(constant, Kind.UPPER, "the constant of the scores")
        self._spread = float(scores.max() - scores.min()) / constant if constant else 0.0

    def at(self, radius: float) -> CertifiedAuroc:
        both, anomalies, normals = (
            certifiable_auroc(self._scores, self._normal, self._bound, radius, moves)
            for moves in (Moves.BOTH, Moves.ANOMALIES, Moves.NORMALS)
        )
        return CertifiedAuroc(radius, both, anomalies, normals)

    def end(self) -> float:
        """The least of 1, 2, 5 times a power of ten at which little is left to an attacker of both classes."""
        if self._spread == 0:
            return 1.0
        power = math.ceil(math.log10(self._spread)) + 1
        steps = [float(f"{first}e{power - k}") for k in range(8) for first in (5, 2, 1)]
        kept = [step for step in steps if certifiable_auroc(self._scores, self._normal, self._bound, step) <= _LITTLE]
        return kept[-1] if kept else steps[0]


def _share(kept: np.ndarray, among: np.ndarray) -> Proportion:
    return Proportion.of(int((kept & among).sum()), int(among.sum()), _LEVEL)
