"""The votes of a smoothing run, drawn again, and its certificates and report, computed again from them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lipkit.bound import Bound
from lipkit.bounds.certificates.json_codec import to_plain
from lipkit.certify import smoothing as rs
from lipkit.certify.evaluate.result_folder import read_settings
from lipkit.certify.evaluate.shards import digests
from lipkit.certify.smoothing.certify_data import describe_run, describe_stop
from lipkit.certify.smoothing.log import ImageSamples
from lipkit.certify.smoothing.sampler import prepared
from lipkit.cli.audit.audited_run import ANEW, AuditedRun
from lipkit.cli.audit.findings import Findings, find_differences
from lipkit.cli.audit.page_check import check_page
from lipkit.cli.audit.samples_check import as_json, check_indices, choose_places
from lipkit.cli.commands.smooth_model import casts, make_smoothed
from lipkit.cli.commands.smooth_request import SmoothRequest
from lipkit.cli.console import bar
from lipkit.cli.runs.smoothing_files import (
    CERTIFICATES,
    VOTES,
    describe_machine,
    gather_report,
    plain_certificates,
    plain_smoothing,
    read_certificates,
)
from lipkit.errors import RecordError
from lipkit.report.html.smoothing_page import render_smoothing_page
from lipkit.report.results.smoothing_contents import SmoothingContents

# Another machine of one kind rounds otherwise: its logits differ by less than this, relative to the largest, ...
_LOGITS = 1e-3
# ... and of a thousand votes no more than this many change.
_VOTES = 2.0


def is_machine_of_votes(run: AuditedRun) -> bool:
    """Whether the run says that it was made by this software on this machine."""
    try:
        return read_certificates(run.folder).get("machine") == describe_machine(run.device)
    except (OSError, RecordError):
        return False


def check_votes(
    run: AuditedRun, request: SmoothRequest, bound: Bound | None, findings: Findings, only: int | None, same: bool
) -> rs.SmoothedEvaluation | None:
    """The certificates of the stored votes; None if there are none.

    The log must be of this model, these data and these settings, with a line for each image, its label and the hash of
    its input. The votes of every image, or of `only` so many that are chosen at random, are drawn again and must be the
    same bit by bit: n0 logits, counts and moments. Unless it is the `same` machine, one that rounds otherwise may
    differ a little, and one of another kind draws other noise; both are told as not checked. Radii are computed from
    the log and must be the same digit by digit. Cost: the run, or so much of it.
    """
    folder = run.folder / VOTES
    log = None
    with findings.reading(folder):
        log = rs.Log.read(folder)
    if log is None:
        return None
    smoothed = make_smoothed(request, run.model, run.test)
    before = len(findings.mismatches)
    with findings.reading(folder / "settings.json"), casts(request, run.device):
        _check_settings(run, request, smoothed, bound, findings)
    if not check_indices(folder, log.images, len(run.test), findings):
        return None
    chosen = (
        range(len(run.test)) if only is None or only >= len(run.test) else sorted(choose_places(len(run.test), only))
    )
    if len(findings.mismatches) == before:
        with findings.reading(folder), casts(request, run.device):
            _repeat(run, request, smoothed, log, bound, chosen, findings, same)
    found = None
    with findings.reading(folder):
        found = rs.recertify(
            folder, request.radii, alpha=request.alpha, method=request.statistics, bound=bound, p=request.p
        )
        _check_certificates(run, found, findings)
    return found


def _check_settings(
    run: AuditedRun, request: SmoothRequest, smoothed: rs.Smoothed, bound: Bound | None, findings: Findings
) -> None:
    path = run.folder / VOTES / "settings.json"
    stored = read_settings(path.parent)
    first = run.test.inputs[:1], run.test.labels[:1]
    with prepared(smoothed.model):
        found = describe_run(smoothed, run.test, first, request.n0, request.n, request.seed, request.block)
    stop = smoothed.stop_rule(request.alpha, request.statistics, bound)
    found["stop"] = None if stop is None else describe_stop(request.alpha, request.statistics, bound)
    if not run.at_home:
        # Weights that a device computes are rounded as it does, and so are answers.
        found |= {name: stored.get(name) for name in ("network", "answers", "device")}
    elif run.device.type == "cuda":
        found["device"] = stored.get("device")
    for place, says, here in find_differences(stored, as_json(found)):
        findings.differ(path, place, says, here, ANEW)
        return


def _repeat(
    run: AuditedRun, request: SmoothRequest, smoothed: rs.Smoothed, log: rs.Log, bound: Bound | None,
    chosen: Sequence[int], findings: Findings, same: bool,
) -> None:  # fmt: skip
    """Compare labels and inputs of all images, and the votes of those that are chosen."""
    folder = run.folder / VOTES
    marks = digests(run.test.inputs)
    labels = run.test.labels.tolist()
    for index, image in log.images.items():
        if image.label != labels[index]:
            findings.differ(folder, f"the label of image {index}", image.label, labels[index], ANEW)
        if image.digest != marks[index]:
            findings.differ(folder, f"the hash of the input of image {index}", image.digest, marks[index], ANEW)
    here = torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else run.device.type
    if log.settings["device"] != here:
        findings.skipped.append(
            f"The votes were drawn on {log.settings['device']}, which draws other noise than {here}; repeat them there."
        )
        return
    sampler = smoothed.sampler(request.seed, request.block)
    stop = smoothed.stop_rule(request.alpha, request.statistics, bound)
    rounded: list[int] = []
    before = len(findings.mismatches)
    with bar("drawing again") as show, prepared(smoothed.model):
        for done, index in enumerate(chosen, start=1):
            x = smoothed.place(run.test.inputs[index : index + 1])[0]
            drawn = sampler.draw(x, index, request.n0, request.n, stop)
            if not same and not torch.equal(drawn.selection, log.images[index].samples.selection):
                rounded.append(index)
            _compare_votes(folder, log.images[index], drawn, index in rounded, findings)
            show(done, len(chosen), "")
    if rounded:
        findings.skipped.append(
            f"This machine rounds otherwise than the one of the run: the logits of image {rounded[0]} and of "
            f"{len(rounded) - 1} others came out nearly the same, so their votes were not compared bit by bit."
        )
    elif len(findings.mismatches) == before:
        findings.confirm(f"votes: those of {len(chosen)} images came out again bit by bit")


def _compare_votes(folder: Path, image: ImageSamples, drawn: rs.Samples, rounded: bool, findings: Findings) -> None:
    """Name the first difference of one image; a machine that rounds otherwise is allowed a little."""
    stored, name = image.samples, f"of image {image.index}"
    apart = (drawn.selection - stored.selection).abs()
    if float(apart.max()) > (_LOGITS * (1 + float(drawn.selection.abs().max())) if rounded else 0.0):
        says, found = (float(one.flatten()[apart.argmax()]) for one in (stored.selection, drawn.selection))
        findings.differ(folder, f"a logit of the samples that choose {name}", says, found, ANEW)
        return
    share = _VOTES / 1000 if rounded else 0.0
    pairs: list[tuple[str, Tensor, Tensor, float]] = [
        ("the number of samples", stored.spent, drawn.spent, 0.0),
        ("the classes whose moments are kept", stored.tracked, drawn.tracked, 0.0),
        ("the counts", stored.counts, drawn.counts, share * int(stored.spent)),
    ]
    for old, new in zip(stored.moments, drawn.moments, strict=True):
        most = share * int(stored.spent) * old.map.mass
        pairs.append((f"the sums of {old.map}", old.first, new.first, most))
        pairs.append((f"the sums of squares of {old.map}", old.second, new.second, most * old.map.mass))
    for what, says, found, most in pairs:
        if says.shape != found.shape or float((says.double() - found.double()).abs().max()) > most:
            findings.differ(folder, f"{what} {name}", says[0].tolist(), found[0].tolist(), ANEW)
            return


def _check_certificates(run: AuditedRun, found: rs.SmoothedEvaluation, findings: Findings) -> None:
    file = run.folder / CERTIFICATES
    with findings.reading(file):
        stored = read_certificates(run.folder)
        rows, here = stored.get("images"), plain_certificates(found)
        wrong = list(find_differences({**stored, "machine": None}, as_json(here)))
        for place, says, now in wrong:
            findings.differ(file, place, says, now, ANEW)
        if not wrong:
            findings.confirm(f"radii: those of all {len(rows or ())} images follow from the votes, digit by digit")


def check_smoothing_report(run: AuditedRun, request: SmoothRequest, bound: Bound | None, findings: Findings) -> None:
    """Compare every number of report.json with what the votes give, and the page with its numbers."""
    file, page_file = run.folder / "report.json", run.folder / "report.html"
    with findings.reading(file):
        claims = SmoothingContents.from_json(file.read_text(encoding="utf-8"))
        found = gather_report(run.folder, request.radii, request.alpha, request.method, request.statistics, bound)
        stored, here = (to_plain(one, SmoothingContents) for one in (claims, found))
        wrong = list(find_differences(stored, here))
        # One difference says enough: a method that differs does so at many radii.
        for place, says, now in wrong[:1]:
            findings.differ(file, place, says, now, ANEW)
        if not wrong:
            findings.confirm("report: every number of report.json follows from the votes")
        with findings.reading(page_file):
            check_page(page_file, render_smoothing_page(claims), run.folder, findings)


def check_smoothing_shares(file: Path, found: rs.SmoothedEvaluation, findings: Findings) -> None:
    """Compare the file that `--json` of the run wrote with the shares that were recomputed."""
    with findings.reading(file):
        try:
            stored: Mapping[str, object] = json.loads(file.read_bytes())
        except ValueError as error:
            raise RecordError(f"{file} is no JSON ({error}); give the file that --json of the run wrote.") from error
        for place, says, here in find_differences(stored, json.loads(json.dumps(plain_smoothing(found)))):
            findings.differ(file, place, says, here, ANEW)
            return
        findings.confirm(f"shares: {file} says what was recomputed")
