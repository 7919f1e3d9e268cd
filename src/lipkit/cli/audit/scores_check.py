"""The scores, threshold, constant and certified numbers of a detector, computed again from its model and data."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import torch

from lipkit.bounds.certificates.json_codec import to_plain
from lipkit.cli.audit.audited_run import ANEW, check_settings
from lipkit.cli.audit.findings import Findings, find_differences
from lipkit.cli.audit.json_check import check_json
from lipkit.cli.audit.page_check import check_page
from lipkit.cli.audit.same_software import rounds_as_here
from lipkit.cli.audit.samples_check import choose_places
from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.console import progress
from lipkit.cli.inputs.rows_file import LabelledRows
from lipkit.cli.runs.anomaly_files import (
    MODEL,
    SCORES,
    RowScores,
    gather_anomalies,
    plain_anomalies,
    read_detector,
)
from lipkit.cli.runs.kept_training import shown_training
from lipkit.report.html.fields.anomaly_page import render_anomaly_page
from lipkit.report.results.anomaly_contents import ANOMALY, AnomalyContents
from lipkit.sdf._base import constant_of

if TYPE_CHECKING:
    from lipkit.estimators import OneClassSDF

# Another machine sums norms in another order.
_ROUNDING = 1e-9


@final
@dataclass(frozen=True, eq=False)
class AnomalyRun:
    """A run of `lipkit anomaly` as its folder describes it, with its data."""

    folder: Path
    request: AnomalyRequest
    data: LabelledRows

    @classmethod
    def rebuild(cls, folder: Path, request: AnomalyRequest, data: str | None, findings: Findings) -> "AnomalyRun":
        """The run of a folder; settings and data that contradict its run.json are noted.

        Args:
            folder: The --out of the run.
            request: That of its run.json.
            data: Where the data lie now, None for where the run says.
            findings: Takes what differs.
        """
        found = LabelledRows.read(Path(data or request.data), request.label)
        check_settings(folder, {**request.options, **found.hashes}, findings)
        return cls(folder, request, found)

    @property
    def learned(self) -> np.ndarray:
        """The rows that were learned from."""
        return self.data.rows[self.data.choose_training(self.request.train, self.request.seed)]


def check_anomalies(
    run: AnomalyRun, findings: Findings, only: int | None, retrain: bool, shares: Path | None
) -> None:  # fmt: skip
    """Compute scores, radii, threshold, constant, certified AUROC and page again, and note all that differs.

    Scores must be within the proven rounding error of both; the threshold is that of the same held-out rows; the
    constant is proven anew; all else must follow from the stored scores digit by digit. `only` is for so many rows
    alone. With `retrain` the training is repeated, whose weights are the same to the bit on the same machine.
    Cost: two passes over the data, one capture; and the training.
    """
    model, claims = run.folder / MODEL, None
    with findings.reading(run.folder / ANOMALY):
        claims = AnomalyContents.from_json((run.folder / ANOMALY).read_bytes(), str(run.folder / ANOMALY))
    detector = None
    with findings.reading(model):
        detector = _read_model(run, findings)
    if detector is None:
        return
    with progress() as doing:
        doing("computing the constant and the threshold again")
        constant = constant_of(detector.field_)
        with findings.reading(model):
            _check_threshold(run, detector, constant, findings)
    scores = None
    with findings.reading(run.folder / SCORES):
        scores = RowScores.read(run.folder / SCORES, len(run.data.rows))
        _check_scores(run, detector, scores, constant, findings, only)
    if claims is None:
        return
    if retrain:
        with findings.reading(model):
            _check_training(run, detector, claims, findings)
    if scores is not None:
        with findings.reading(run.folder / ANOMALY):
            _check_contents(run, claims, detector, scores, constant, findings)
    page = run.folder / "anomaly.html"
    with findings.reading(page):
        check_page(page, render_anomaly_page(claims), run.folder, findings)
    if shares is not None:
        check_json(shares, plain_anomalies(claims), ANOMALY, findings)


def _read_model(run: AnomalyRun, findings: Findings) -> "OneClassSDF | None":
    """The stored detector, if it has the settings of the run and takes its rows."""
    file, found = run.folder / MODEL, read_detector(run.folder)
    says, wanted = (one.get_params(deep=False) for one in (found, run.request.detector()))
    wrong = [name for name in wanted if says[name] != wanted[name]]
    for name in wrong:
        findings.differ(file, f"the setting {name}", says[name], wanted[name], ANEW)
    columns = found.field_.dim
    if columns != run.data.rows.shape[1]:
        findings.differ(file, "the number of columns", columns, run.data.rows.shape[1], ANEW)
        return None
    return None if wrong else found


def _check_threshold(run: AnomalyRun, detector: "OneClassSDF", constant: float, findings: Findings) -> None:
    found = detector.recompute_offset(run.learned)
    error = float(detector.field_.measure(torch.from_numpy(run.learned)).error.max())
    # An order statistic moves by no more than the scores do; with a move eps, four errors are taken off it.
    room = 8 * error + _ROUNDING * constant * run.request.eps
    if abs(found - detector.offset_) > room:
        findings.differ(run.folder / MODEL, "the threshold", detector.offset_, found, ANEW)
    else:
        findings.confirm(f"threshold: {detector.offset_:.6g} came out again")


def _check_scores(
    run: AnomalyRun, detector: "OneClassSDF", stored: RowScores, constant: float, findings: Findings, only: int | None
) -> None:
    count = len(run.data.rows)
    places = np.arange(count) if only is None or only >= count else np.array(sorted(choose_places(count, only)))
    rows = run.data.rows[places]
    found = RowScores.measure(detector, rows, "scoring again")
    error = detector.field_.measure(torch.from_numpy(rows)).error.numpy()
    # Both scores have an error at most so large.
    off = np.flatnonzero(np.abs(stored.score[places] - found.score) > 2 * error)
    file = run.folder / SCORES
    for i in off.tolist():
        findings.differ(
            file, f"the score of row {places[i]}", float(stored.score[places[i]]), float(found.score[i]), ANEW
        )
    radius = stored.radius[places]
    with np.errstate(invalid="ignore"):
        apart = np.abs(radius - found.radius) > 4 * error / constant + _ROUNDING * found.radius
    wrong = np.flatnonzero(apart & (radius != found.radius))
    for i in wrong.tolist():
        findings.differ(file, f"the radius of row {places[i]}", float(radius[i]), float(found.radius[i]), ANEW)
    if not len(off) and not len(wrong):
        findings.confirm(f"scores: those of {len(places)} rows came out again within their rounding, and their radii")


def _check_training(run: AnomalyRun, detector: "OneClassSDF", claims: AnomalyContents, findings: Findings) -> None:
    if not rounds_as_here(claims.software, findings):
        return
    with shown_training("repeating the training") as shown:
        trained = run.request.detector().fit(run.learned, checkpoints=shown)
    (says, about), (found, again) = detector.to_state(), trained.to_state()
    wrong = [name for name in found if not torch.equal(found[name], says[name])]
    for name in wrong:
        differing = (found[name] != says[name]).flatten().nonzero()[0]
        stored, repeated = (float(one[name].flatten()[differing]) for one in (says, found))
        findings.differ(run.folder / MODEL, f"the tensor {name}", stored, repeated, ANEW)
    if about["health"] != again["health"]:
        findings.differ(run.folder / MODEL, "the journal of the training", about["health"], again["health"], ANEW)
    elif not wrong:
        findings.confirm(f"training: {len(found)} tensors and the journal came out again bit for bit")


def _check_contents(
    run: AnomalyRun, claims: AnomalyContents, detector: "OneClassSDF", scores: RowScores, constant: float,
    findings: Findings,
) -> None:  # fmt: skip
    file = run.folder / ANOMALY
    if abs(claims.constant - constant) > _ROUNDING * constant:
        findings.differ(file, "the constant", claims.constant, constant, ANEW)
    else:
        findings.confirm(f"constant: {claims.constant:.6g} was proven again")
        # All checks below use the larger of the claimed constant and the one that was proven here.
        constant = max(claims.constant, constant)
    said = read_command(claims.command)
    if not isinstance(said, AnomalyRequest) or said.options != run.request.options:
        findings.differ(file, "the command", claims.command, run.request.command, ANEW)
        said = run.request
    # Words of the command and names of places are on record, and so is the software.
    found = replace(
        gather_anomalies(said, run.data, detector, scores, constant), command=claims.command, software=claims.software
    )
    stored, here = (to_plain(one, AnomalyContents) for one in (claims, found))
    wrong = [one for one in find_differences(stored, here) if one[0] != "constant"]
    for place, says, now in wrong:
        findings.differ(file, place, says, now, ANEW)
    if not wrong:
        what = "" if claims.labelled is None else ", certified AUROC included,"
        findings.confirm(f"result: every number of {ANOMALY}{what} follows from the scores")
