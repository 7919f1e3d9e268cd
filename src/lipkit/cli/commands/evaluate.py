"""`lipkit certify` and `lipkit attack`: a model from a file on data from a file, and the report of both."""

import functools
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from lipkit._seeds import check_seed
from lipkit.bound import Bound
from lipkit.bounds import Method
from lipkit.certify import find_warnings, head_pairwise, in_norm
from lipkit.certify.attacks import TwoClasses
from lipkit.cli.commands.evaluation_request import EvaluationRequest
from lipkit.cli.commands.regression import bound_outputs
from lipkit.cli.console import progress, terminal
from lipkit.cli.inputs import load, option_words
from lipkit.cli.inputs.datasets import test_inputs
from lipkit.cli.inputs.device import describe_device, device_of
from lipkit.cli.runs.assessment import current_date, evaluate_goal, publish_report
from lipkit.cli.runs.claimed_folder import ClaimedFolder
from lipkit.cli.runs.folder_lock import lock_folder
from lipkit.cli.runs.result_files import by_class, plain, print_warnings, write_json
from lipkit.cli.runs.stored_bound import load_or_find_bound
from lipkit.cli.training import Goal
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.errors import ArgumentError, LipkitError, NeedsRegion
from lipkit.regions import Everywhere
from lipkit.report.results.about import About, Prints


def evaluate_model(request: EvaluationRequest) -> None:
    """Certify, and attack where steps are asked for; print the shares, and write them and the report where wanted.

    In the folder of `--out` each step picks up what an earlier run of the same left: run.json, the weights where no
    file was named for them, bound.safetensors, evaluation/, report.html and report.json. Under torchrun the processes
    share the samples. Cost: the bound, `accuracy`, and for a report `gather_contents`.
    """
    option_words.check_json(request.json)
    check_seed(request.seed, "--seed")
    goal, device = request.goal, device_of(request.device)
    methods = methods_of(request)
    model = load.model_with_weights(request.model, request.weights, request.seed)
    if not isinstance(model, nn.Module):
        raise ArgumentError("Data are evaluated on a model of a Python file; a .pt2 program has a fixed batch.")
    own = model.eval()
    if request.regression:
        _move(request, methods, own, device)
        return
    model, test = request.adaptation.adapt(own, request.test_set(), request.model, request.data)
    if isinstance(model, TwoClasses) and not isinstance(own, TwoClasses):
        print(f"{request.model} gives one score: above 0 it says class 1, below class 0.", file=sys.stderr)
    team = Team.join(device)
    folder = None if request.out is None else ClaimedFolder.claim(request, request.out, own, test, team)
    with nullcontext() if folder is None else lock_folder(folder.path, team.leads):
        _evaluate(request, goal, methods, model, test, team, folder)
    team.leave()


def _move(request: EvaluationRequest, methods: Sequence[Method], own: nn.Module, device: torch.device) -> None:
    """Bound how far each output moves."""
    inputs = test_inputs(request.data, request.label)[: request.samples]
    model = request.adaptation.adapt_outputs(own, inputs, request.model, request.data).to(device)
    bound_outputs(
        request, model, inputs.to(device), methods, lambda one, x: find_constants(one, x, methods, request.goal.p)
    )
    load.print_weights_source(request.model, request.weights, own)


def _evaluate(
    request: EvaluationRequest, goal: Goal, methods: Sequence[Method], model: nn.Module, test: Examples, team: Team,
    folder: ClaimedFolder | None,
) -> None:  # fmt: skip
    """Bound, evaluate, print and report."""
    model.to(team.device)
    example = test.inputs[:1].to(team.device)

    def find() -> Bound:
        return find_constants(model, example, methods, goal.p)

    with progress() as doing, torch.no_grad():
        doing(f"bounding the model by {request.method}")
        bound = (
            find()
            if folder is None
            else load_or_find_bound(folder.path / "bound.safetensors", model, example, folder.hashes.code, find, team)
        )
    if team.leads:
        load.print_weights_source(request.model, request.weights, model)
    # A line for each sample, so that an interrupted run continues.
    records = None if folder is None else folder.path / "evaluation"
    found = evaluate_goal("evaluating", model, test, bound, goal, request.seed, records)
    if team.leads:
        say = terminal().print
        warnings = find_warnings(found, test.inputs, bound, test.classes)
        say(str(found), markup=False, highlight=False)
        print_warnings(warnings)
        say(by_class(found, test.classes), soft_wrap=True, markup=False, highlight=False)
        write_json(request.json, plain(found, warnings))
        if folder is not None:
            about = _about(request, team, folder.hashes)
            page = publish_report(folder.path, model, test, found, bound, (), about, goal.attack)
            say(f"report in {page}", soft_wrap=True, markup=False, highlight=False)


def _about(request: EvaluationRequest, team: Team, hashes: Prints) -> About:
    """The origin of the results, for the page."""
    return About.here(
        command=request.command, date=current_date(), seconds=None, seed=request.seed,
        device=describe_device(team.device), model=request.model,
        fields={"weights": describe_weights(request), **request.options}, prints=hashes,
    )  # fmt: skip


def describe_weights(request: EvaluationRequest) -> str:
    """Where the weights come from, in the words of a page."""
    return "as the model's file makes them" if request.weights is None else str(request.weights)


def methods_of(request: EvaluationRequest) -> tuple[Method, ...]:
    """The methods in the norm of the radii, and in l2 beside it; refuses unknown names."""
    l2 = option_words.parse_metric("2")
    if request.goal.p == 2:
        return (option_words.parse_method(request.method, l2, Everywhere(), None),)
    return (
        *option_words.parse_methods_in_norm(request.method, option_words.parse_metric(request.norm)),
        *option_words.parse_methods_in_norm(request.method, l2),
    )


def find_constants(model: nn.Module, example: Tensor, methods: Sequence[Method], p: float) -> Bound:
    """The constants in l_p: found in it, or found in l2 and enlarged, whichever are smaller.

    A layer may know one of the two norms alone, and a method may need a region: one that gives a bound is enough.
    """
    found: list[Bound] = []
    failed: list[LipkitError] = []
    for method in methods:
        try:
            found.append(in_norm(head_pairwise(model, example, method), p, example[0].numel()))
        except LipkitError as error:
            failed.append(error)
    if not found:
        if isinstance(failed[0], NeedsRegion):
            remedy = "This command needs a constant on the whole space; lipkit bound has --ball and --box for regions."
            raise NeedsRegion(failed[0].problem, remedy) from failed[0]
        raise failed[0]
    if len(found) == 1:
        return found[0]
    # The page says what was compared, for an auditor.
    ways = "; ".join(dict.fromkeys(bound.how for bound in found))
    return replace(functools.reduce(Bound.best, found), method=f"the smallest for each pair of: {ways}")
