"""`lipkit audit`: everything that a run says, recomputed from its weights, its data and its journal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from lipkit._seeds import check_seed
from lipkit.bounds.certificates.certificate import Certificate
from lipkit.bounds.certificates.verify import verify
from lipkit.certify import Evaluation
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.cli.audit.audited_run import AuditedRun, Places
from lipkit.cli.audit.claims_check import check_claims, check_shares, is_same_machine, read_claims
from lipkit.cli.audit.constant_check import check_constant
from lipkit.cli.audit.findings import Findings
from lipkit.cli.audit.samples_check import check_samples
from lipkit.cli.audit.scores_check import AnomalyRun, check_anomalies
from lipkit.cli.audit.surface_check import SurfaceRun, check_surface
from lipkit.cli.audit.training_check import check_training
from lipkit.cli.audit.votes_check import (
    check_smoothing_report,
    check_smoothing_shares,
    check_votes,
    is_machine_of_votes,
)
from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.commands.smooth_request import SmoothRequest
from lipkit.cli.commands.surface_request import SurfaceRequest
from lipkit.cli.console import progress, terminal
from lipkit.cli.inputs import load, option_words
from lipkit.cli.options import ANY_MODEL, argument, option
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.runs.result_files import write_json
from lipkit.errors import ArgumentError, AuditError, NotProvenError, PartialAudit

# Mismatches that are printed: other weights make all samples others.
_SHOWN = 20


@final
@dataclass(frozen=True)
class AuditRequest:
    """Recompute what a run says from its weights, data and journal, and name every mismatch.

    Ends with 0 only if everything holds: with 7 if something does not, with 6 if fresh draws prove less than the
    recorded ones, with 8 after a spot check or where a part could not be repeated, and with 2 if a file is missing.
    """

    run: Path = argument(
        "The --out of train, certify, attack, smooth, anomaly or surface; or a certificate of `bound --json`.", "RUN"
    )
    model: str | None = option(f"The recipe's file, or the model, if it lies elsewhere now; {ANY_MODEL}", None)
    weights: Path | None = option("The --weights of the run, if they lie elsewhere now.", None)
    data: str | None = option("The --data of the run, or its table or mesh, if they lie elsewhere now.", None)
    device: str | None = option("cpu or cuda; by default that of the run.", None)
    only: int | None = option("A spot check: so many samples, chosen at random, and no attack.", None, least=1)
    retrain: bool = option("Train again too, and compare the weights.", False, "--retrain")
    shares: Path | None = option("What --json of the run wrote, to be checked too.", None)
    out: Path | None = option("Folder for repeated attacks as they come; the same continues.", None)
    json: Path | None = option("File for what was found.", None)
    seed: int = option("Draws the weights of a certificate's model where there are none.", 0)


def audit_run(request: AuditRequest) -> None:
    """Audit a run or a certificate, print what holds, and end with an error that names all that does not."""
    option_words.check_json(request.json)
    say = terminal().print
    findings = Findings(say=lambda sentence: say(sentence, soft_wrap=True, markup=False, highlight=False))
    if not request.run.exists():
        raise ArgumentError(f"There is no run {request.run}; name the --out of a command that makes one.")
    evaluation = None
    if request.run.is_dir():
        evaluation = _audit_folder(request, findings)
    else:
        _audit_certificate(request, findings)
    write_json(request.json, _plain(request, findings, evaluation))
    _conclude(request, findings, evaluation, findings.say)


def _audit_folder(request: AuditRequest, findings: Findings) -> Evaluation | None:
    places = Places(request.model, request.weights, request.data, request.device)
    if not (request.run / "run.json").is_file():
        raise ArgumentError(f"{request.run} has no run.json; name the --out of a command that makes one.")
    begun = None
    with findings.reading(request.run / "run.json"):
        begun = read_command(Identity.read(request.run).command)
    if isinstance(begun, AnomalyRequest):
        run = AnomalyRun.rebuild(request.run, begun, request.data, findings)
        check_anomalies(run, findings, request.only, request.retrain, request.shares)
        return None
    if isinstance(begun, SurfaceRequest):
        _audit_surface(request, begun, findings)
        return None
    run = None
    if begun is None:
        return None
    with findings.reading(request.run / "run.json"):
        run = AuditedRun.rebuild(request.run, places, findings)
    if run is None:
        return None
    asked = read_command(run.command)
    if isinstance(asked, SmoothRequest):
        return _audit_votes(request, run, asked, findings)
    claims = read_claims(run.folder, findings)
    same = is_same_machine(claims, run)
    journal: list[dict[str, Any]] = []
    if run.recipe is not None:
        with progress() as doing:
            doing("repeating the training" if request.retrain else "repeating the first step")
            journal = check_training(run, run.recipe, findings, same, request.retrain)
    with progress() as doing:
        doing("computing the constant again")
        bounds = check_constant(run, findings, same)
    if bounds is None:
        return None
    evaluation = check_samples(run, bounds, findings, same, request.only, request.out)
    if evaluation is None:
        return None
    if claims is not None:
        with progress() as doing:
            doing("comparing the report")
            check_claims(run, claims, evaluation, bounds[0], journal, findings)
    if request.shares is not None:
        check_shares(request.shares, run, evaluation, bounds[0], findings)
    return evaluation


def _audit_surface(request: AuditRequest, begun: SurfaceRequest, findings: Findings) -> None:
    """Audit a learned surface: its constant, how far it is off, what was extracted and drawn, and its page."""
    if request.only is not None:
        raise ArgumentError(f"{request.run} holds a surface, which has no samples to choose from; leave out --only.")
    before = len(findings.mismatches)
    with findings.reading(request.run / "run.json"):
        begun.check()
    if len(findings.mismatches) > before:
        return
    run = SurfaceRun.rebuild(request.run, begun, request.data, findings)
    if run is not None:
        check_surface(run, findings, request.retrain, request.shares)


def _audit_votes(request: AuditRequest, run: AuditedRun, asked: SmoothRequest, findings: Findings) -> Evaluation | None:
    """Audit a smoothing run: its constant where it has one, its votes, its radii and its report."""
    bound, same = None, is_machine_of_votes(run)
    if asked.lipschitz is not None:
        with progress() as doing:
            doing("computing the constant again")
            bounds = check_constant(run, findings, same)
        if bounds is None:
            return None
        bound = bounds[0]
        if bool((bounds[1].log_value.cpu() > bound.log_value).any()) and bounds[1].failure:
            findings.unproven.append(f"{run.folder}: fresh draws prove less than the constant behind the radii.")
    found = check_votes(run, asked, bound, findings, request.only, same)
    if found is None:
        return None
    with progress() as doing:
        doing("comparing the report")
        check_smoothing_report(run, asked, bound, findings)
    if request.shares is not None:
        check_smoothing_shares(request.shares, found, findings)
    return found.evaluation


def _audit_certificate(request: AuditRequest, findings: Findings) -> None:
    if request.model is None:
        raise ArgumentError(f"A certificate names no file; give the model of {request.run} with --model.")
    check_seed(request.seed, "--seed")
    model = load.model_with_weights(request.model, request.weights, request.seed)
    with findings.reading(request.run), progress() as doing:
        doing("computing the bound again")
        found = verify(Certificate.load(request.run), model)
        if found.holds:
            findings.confirm(f"certificate: {found}")
        else:
            findings.unproven.append(f"{request.run}: {found}")


def _conclude(request: AuditRequest, findings: Findings, evaluation: Evaluation | None, say: Any) -> None:
    for sentence in findings.skipped:
        say(f"not checked: {sentence}")
    if findings.mismatches:
        count = len(findings.mismatches)
        shown = findings.mismatches[:_SHOWN]
        rest = [f"{count - _SHOWN} more, which --json FILE lists."] if count > _SHOWN else []
        named = "\n".join(f"- {sentence}" for sentence in [*shown, *rest])
        raise AuditError(f"{request.run} does not hold: {count} mismatch{'es' if count > 1 else ''}.\n{named}")
    if findings.unproven:
        raise NotProvenError("\n".join(findings.unproven))
    if request.only is not None or findings.skipped:
        what = "This was a spot check" if request.only is not None else "This was no whole audit"
        raise PartialAudit(f"{what}: no mismatch was found, and not everything was looked at.")
    say(f"{request.run} holds.{'' if evaluation is None else ' ' + _summary(evaluation)}")


def _summary(found: Evaluation) -> str:
    clean = found.overall.clean
    shares = zip(found.overall.certified, found.eps, strict=True)
    proven = ", ".join(f"{share.count} within {said_radius(eps)}" for share, eps in shares)
    return f"Of {clean.total} samples, {clean.count} are right, and proven are {proven}."


def _plain(request: AuditRequest, findings: Findings, evaluation: Evaluation | None) -> dict[str, object]:
    whole = request.only is None and not findings.skipped
    return {
        "run": str(request.run),
        "holds": whole and not findings.mismatches and not findings.unproven,
        "whole": whole,
        "mismatches": findings.mismatches,
        "unproven": findings.unproven,
        "skipped": findings.skipped,
        "confirmed": findings.holds,
        "certified": None if evaluation is None else [one.count for one in evaluation.overall.certified],
        "samples": None if evaluation is None else evaluation.overall.clean.total,
    }
