"""Files of a detector of anomalies: its model, the scores of all rows, and the result with its page."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from jaxtyping import Float64

from lipkit import sdf
from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._files import write_whole
from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.console import bar, progress
from lipkit.cli.inputs.rows_file import LabelledRows
from lipkit.cli.inputs.safetensors_file import tensors_from, tensors_to
from lipkit.cli.runs.software import describe_software
from lipkit.errors import RecordError
from lipkit.report.html.fields.anomaly_page import write_anomaly_page
from lipkit.report.results.anomaly_contents import ANOMALY, AnomalyContents
from lipkit.report.results.gather_anomalies import ScoredRows

if TYPE_CHECKING:
    from lipkit.estimators import OneClassSDF

MODEL, SCORES = "model.safetensors", "scores.json"
# Rows that are scored at once.
_BATCH = 8192


@final
@dataclass(frozen=True, eq=False)
class RowScores:
    """The score of each row, and the radius of a ball in which it stays on its side of the threshold."""

    score: Float64[np.ndarray, " n"]
    radius: Float64[np.ndarray, " n"]

    @classmethod
    def measure(cls, detector: "OneClassSDF", rows: Float64[np.ndarray, "n d"], what: str) -> "RowScores":
        """Score rows, with a bar that says `what`. Cost: one pass, and one with a bound of its rounding."""
        beyond = sdf.Offset(detector.field_, -detector.offset_)
        scores, radii = [], []
        with bar(what) as show:
            for start in range(0, len(rows), _BATCH):
                part = rows[start : start + _BATCH]
                scores.append(detector.score_samples(part))
                radii.append(sdf.clearance(beyond, torch.from_numpy(part)).numpy())
                show(start + len(part), len(rows), "")
        return cls(np.concatenate(scores), np.concatenate(radii))

    @classmethod
    def read(cls, path: Path, count: int) -> "RowScores":
        """The scores of a file, one for each of `count` rows; anything else raises a `RecordError`."""
        remedy = "remove it, and run the same command again"
        data = from_sealed_json(path.read_bytes(), str(path), remedy)
        try:
            score, radius = (np.array([float(one) for one in data[name]]) for name in ("score", "radius"))
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{path} holds no scores; {remedy}.") from error
        if not len(score) == len(radius) == count:
            raise RecordError(f"{path} has {len(score)} scores, expected {count}; {remedy}.")
        if not np.isfinite(score).all() or np.isnan(radius).any() or (radius < 0).any():
            raise RecordError(f"{path} has a score or a radius that is none, such as NaN; {remedy}.")
        return cls(score, radius)

    def write(self, path: Path) -> None:
        """Write the scores to a file, whole or not at all."""
        write_whole(path, to_sealed_json({"score": self.score.tolist(), "radius": self.radius.tolist()}))


def store_detector(detector: "OneClassSDF", folder: Path) -> None:
    """Write a detector to the folder of its run."""
    write_whole(folder / MODEL, tensors_to(*detector.to_state()))


def read_detector(folder: Path) -> "OneClassSDF":
    """The detector in the folder of a run; nothing is executed."""
    from lipkit.estimators import OneClassSDF

    return OneClassSDF.from_state(*tensors_from(folder / MODEL, sealed=True))


def gather_anomalies(
    request: AnomalyRequest, data: LabelledRows, detector: "OneClassSDF", scores: RowScores, constant: float
) -> AnomalyContents:
    """Everything that the page shows, with a proven constant of the scores. Cost: the sorts of certified AUROC."""
    chosen = data.choose_training(request.train, request.seed)
    learned = np.zeros(len(data.rows), dtype=bool)
    learned[chosen] = True
    scored = ScoredRows(scores.score, scores.radius, learned, data.labels)
    edges, bars = scored.histogram()
    return AnomalyContents(
        data=Path(request.data).name, command=request.command,
        settings=tuple(sorted({**request.options, **data.hashes}.items())),
        software=describe_software(),
        rows=len(data.rows), columns=data.rows.shape[1], learned=len(chosen),
        held=math.floor(request.calibration * len(chosen)), constant=constant, kind=detector.bound_.kind.name.lower(),
        threshold=detector.offset_, contamination=request.contamination, eps=request.eps,
        below=int((scores.score < detector.offset_).sum()),
        labelled=scored.gather_labelled(constant, detector.offset_, request.moves, request.eps),
        edges=edges, bars=bars,
        health=detector.health_, strangest=scored.strangest(),
    )  # fmt: skip


def plain_anomalies(contents: AnomalyContents) -> dict[str, object]:
    """The numbers of the page as JSON, without its drawings."""
    known = contents.labelled
    return {
        "rows": contents.rows, "learned": contents.learned, "held": contents.held, "constant": contents.constant,
        "kind": contents.kind, "threshold": contents.threshold, "below": contents.below,
        "strangest": [vars(one) for one in contents.strangest],
        "radii": [] if known is None else [
            {"radius": at.radius, "auroc": {"both": at.both, "anomalies": at.anomalies, "normals": at.normals},
             "passed": vars(alarms.passed), "flagged": vars(alarms.flagged)}
            for at, alarms in zip(known.table, known.alarms, strict=True)
        ],
    }  # fmt: skip


def publish_anomalies(folder: Path, contents: AnomalyContents) -> Path:
    """Write the result and its page; returns where the page is."""
    with progress() as doing:
        doing("writing the page")
        write_whole(folder / ANOMALY, contents.to_json())
        return write_anomaly_page(contents, folder)
