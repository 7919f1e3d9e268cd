"""The origin that a report states: its command must mean the run that was audited, and its words follow from it."""

from dataclasses import replace
from pathlib import Path

from lipkit.cli.audit.audited_run import ANEW, AuditedRun
from lipkit.cli.audit.findings import Findings
from lipkit.cli.commands.evaluate import describe_weights
from lipkit.cli.commands.evaluation_request import EvaluationRequest
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.runs.run import Order
from lipkit.cli.training import Recipe
from lipkit.cli.training.overrides import make_quick_recipe, make_recipe
from lipkit.cli.training.recipe import plain_fields
from lipkit.report.results.about import About


def find_origin(run: AuditedRun, claimed: About, findings: Findings) -> About:
    """What a report says of its origin, as far as the run decides it: recipe, model, settings, seed and hashes.

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


def _file_name(request: Order | EvaluationRequest) -> str:
    """The file of the recipe or model without its folder; of a model with the name inside it."""
    return Path(request.recipe).name if isinstance(request, Order) else Path(request.model).name
