"""The claims of a run: the numbers of report.json, the text of the page, the file of shares, and the stated origin."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipkit._runtime import evaluating
from lipkit.bound import Bound
from lipkit.bounds.certificates.certificate import Software
from lipkit.bounds.certificates.json_codec import to_plain
from lipkit.certify import Evaluation, find_warnings
from lipkit.cli.audit.audited_run import ANEW, AuditedRun
from lipkit.cli.audit.findings import Findings, find_differences
from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.commands.evaluate import describe_weights
from lipkit.cli.commands.evaluation_request import EvaluationRequest
from lipkit.cli.commands.run_commands import RunRequest, read_command
from lipkit.cli.commands.surface_request import SurfaceRequest
from lipkit.cli.inputs.device import describe_device
from lipkit.cli.runs.result_files import plain
from lipkit.cli.runs.run import Order
from lipkit.cli.runs.stored_privacy import read_privacy
from lipkit.cli.training import Recipe
from lipkit.cli.training.journal import seconds_in
from lipkit.cli.training.overrides import make_quick_recipe, make_recipe
from lipkit.cli.training.profile import read_profile
from lipkit.cli.training.recipe import plain_fields
from lipkit.errors import RecordError
from lipkit.report.html.page import compare_page, has_same_drawer
from lipkit.report.results.about import About
from lipkit.report.results.contents import Contents, Picture
from lipkit.report.results.gather import gather_contents
from lipkit.report.results.recount import read_report
from lipkit.rounding.float64 import vector_norms
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS


def find_origin(run: AuditedRun, claimed: About, findings: Findings) -> About:
    """The origin that a report states, as far as the run decides it: recipe, model, settings, seed and hashes.

    The command may have other words and other folders than that of run.json, since a run may be resumed from
    elsewhere; it must name the same file and give the same settings, and what differs is noted. Date, device and
    versions stay as they are claimed.
    """
    file = run.folder / "report.json"
    about = replace(claimed, seed=run.seed, prints=run.prints)
    with findings.reading(file):
        said, known = read_command(claimed.command), read_command(run.command)
        named, wanted = ((type(one).__name__, _file_name(one)) for one in (said, known))
        if named != wanted:
            findings.differ(file, "the command", claimed.command, run.command, ANEW)
            return about
        if run.recipe is not None and isinstance(said, Order):
            return _of_recipe(run, run.recipe, replace(about, model=""), said, findings)
        if isinstance(said, EvaluationRequest):
            return _of_model(run, replace(about, recipe="", watched=""), said, findings)
    return about


def _of_recipe(run: AuditedRun, recipe: Recipe, about: About, said: Order, findings: Findings) -> About:
    fields = plain_fields((make_quick_recipe if said.quick else make_recipe)(type(recipe), said.settings))
    for name in sorted({*fields, *run.fields} - {"data"}):
        if fields.get(name) != run.fields.get(name):
            what = f"the setting {name} in the command"
            findings.differ(run.folder / "report.json", what, fields.get(name), run.fields.get(name), ANEW)
    return replace(about, recipe=type(recipe).__name__, watched=recipe.watches, fields=tuple(fields.items()))


def _of_model(run: AuditedRun, about: About, said: EvaluationRequest, findings: Findings) -> About:
    for name, value in said.options.items():
        if value != run.fields.get(name):
            what = f"the setting {name} in the command"
            findings.differ(run.folder / "report.json", what, value, run.fields.get(name), ANEW)
    if said.samples != run.goal.samples:
        what = "the number of samples in the command"
        findings.differ(run.folder / "report.json", what, said.samples, run.goal.samples, ANEW)
    fields = {"weights": describe_weights(said), **said.options}
    return replace(about, model=said.model, fields=tuple(fields.items()))


def _file_name(request: RunRequest) -> str:
    """The file of the recipe or model without its folder; of a model with the name inside it."""
    if isinstance(request, Order):
        return Path(request.recipe).name
    if isinstance(request, AnomalyRequest | SurfaceRequest):
        return Path(request.data if isinstance(request, AnomalyRequest) else request.mesh).name
    return Path(request.model).name


# Parts of a report that are measured beside the proof, in float32 or by drawn norms: how far they may be apart,
# relatively and absolutely. The norms of layers are logarithms; singular values of 0 come out as rounding errors.
_MEASURED = {"layers": (0.02, 0.02), "spectra": (0.02, 1e-6), "depth": (0.02, 0.0), "plane": (0.02, 1e-9)}


def read_claims(run_folder: Path, findings: Findings) -> Contents | None:
    """The stored report; None if it is missing, damaged or miscounted, which is noted."""
    file = run_folder / "report.json"
    with findings.reading(file):
        return read_report(file)
    return None


def is_same_machine(claims: Contents | None, run: AuditedRun) -> bool:
    """Whether the report says that it was made by this software on this machine."""
    if claims is None:
        return False
    return claims.about.software == Software.here() and claims.about.device == describe_device(run.device)


def check_claims(
    run: AuditedRun, claims: Contents, evaluation: Evaluation, bound: Bound, journal: list[dict[str, Any]],
    findings: Findings,
) -> None:  # fmt: skip
    """Compare every number of report.json with what is gathered anew, and the page with its numbers.

    Where weights or samples do not hold, what the report measures on them is left out.

    Counts, radii, hashes and settings must be the same. What is measured in float32 or by drawn norms (the tables of
    layers, spectra, gradients, the map) may differ by 2 %. Neighbours in the gallery must be as far away, and of the
    class, as they say; on the same machine the search must find them again. Date and versions are on record only.
    """
    file = run.folder / "report.json"
    about = replace(find_origin(run, claims.about, findings), seconds=_seconds(journal, run))
    if findings.mismatches:
        for place, says, here in _differences(claims, replace(claims, about=about), exact=True):
            findings.differ(file, place, says, here, ANEW)
        _check_page(run, claims, findings)
        return
    with findings.reading(file):
        profile = read_profile(run.folder)
        privacy = None if run.recipe is None else read_privacy(run.recipe, run.folder)
        found = gather_contents(
            run.model, run.test, evaluation, bound, journal, about, run.goal.attack, profile, privacy
        )
        exact = is_same_machine(claims, run) and run.device.type == "cpu"
        for place, says, here in _differences(claims, found, exact):
            findings.differ(file, place, says, here, ANEW)
        for sentence in _false_pictures(run, claims):
            findings.refuse(file, f"{file} {sentence}; {ANEW}.")
        if not findings.mismatches:
            apart = "" if profile is None else "; its profile is that of profile.json, which is on record only"
            findings.confirm(f"report: every number of report.json was computed again{apart}")
    _check_page(run, claims, findings)


def _seconds(journal: list[dict[str, Any]], run: AuditedRun) -> float | None:
    return None if run.recipe is None else seconds_in(journal)


def _differences(claims: Contents, found: Contents, exact: bool) -> Iterator[tuple[str, Any, Any]]:
    stored, anew = to_plain(claims, Contents), to_plain(found, Contents)
    assert isinstance(stored, dict)
    assert isinstance(anew, dict)
    for name in stored:
        leave_out = name == "gallery" and not exact
        a, b = (_without_search(one[name]) if leave_out else one[name] for one in (stored, anew))
        # One difference of each part says enough.
        rtol, atol = _MEASURED.get(name, (0.0, 0.0))
        yield from list(find_differences(a, b, rtol, name, atol))[:1]


def _without_search(gallery: Any) -> Any:
    """A gallery without what a search found."""
    searched = ("neighbour", "became", "distance")
    if not isinstance(gallery, Mapping):
        return gallery
    rows = {
        row: [{key: value for key, value in one.items() if key not in searched} for one in gallery[row]]
        for row in ("hardest", "safest")
    }
    return {**gallery, **rows}


def _false_pictures(run: AuditedRun, claims: Contents) -> Iterator[str]:
    """Neighbours that are not what the gallery says of them."""
    gallery = claims.gallery
    for one in (*gallery.hardest, *gallery.safest) if gallery is not None else ():
        if one.neighbour is not None and one.distance is not None:
            yield from _false_neighbour(run, one, torch.from_numpy(one.neighbour.array()), claims.p)


def _false_neighbour(run: AuditedRun, one: Picture, neighbour: Tensor, p: float) -> Iterator[str]:
    image, there = run.test.inputs[one.index].double(), neighbour.double()
    length = float(vector_norms((there - image).flatten()[None], p))
    said = one.distance or 0.0
    if abs(length - said) > MILLIONS_OF_ROUNDINGS * max(length, said):
        yield f"says that the neighbour of image {one.index} is {said!r} away, and its pixels are {length!r} away"
    parameter = next(run.model.parameters(), None)
    inputs = there[None].float() if parameter is None else there[None].to(parameter.detach())
    with torch.no_grad(), evaluating(run.model):
        became = int(run.model(inputs.to(run.device)).argmax())
    if became != one.became:
        yield f"says that the neighbour of image {one.index} is of class {one.became}, and the model says {became}"


def _check_page(run: AuditedRun, claims: Contents, findings: Findings) -> None:
    file = run.folder / "report.html"
    with findings.reading(file):
        page = file.read_text(encoding="utf-8", errors="replace")
        wrong = compare_page(page, claims)
        for sentence in wrong:
            findings.refuse(file, f"{sentence} Draw it again from intact data: lipkit report {run.folder}")
        if not has_same_drawer(page):
            findings.skipped.append(
                f"The drawings of {file} were not compared, because another version of the library drew them; draw it "
                f"again from its data: lipkit report {run.folder}."
            )
        if not wrong:
            findings.confirm("page: report.html says what report.json says")


def check_shares(file: Path, run: AuditedRun, evaluation: Evaluation, bound: Bound, findings: Findings) -> None:
    """Compare the file that `--json` of the run wrote with the shares that were recomputed."""
    with findings.reading(file):
        try:
            stored = json.loads(file.read_bytes())
        except ValueError as error:
            raise RecordError(f"{file} is no JSON ({error}); give the file that --json of the run wrote.") from error
        found = plain(evaluation, find_warnings(evaluation, run.test.inputs, bound, run.test.classes))
        for place, says, here in find_differences(stored, json.loads(json.dumps(found))):
            findings.differ(file, place, says, here, ANEW)
            return
        findings.confirm(f"shares: {file} says what was recomputed")
