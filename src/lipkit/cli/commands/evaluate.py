"""`lipkit certify` and `lipkit attack`: a model from a file on data from a file, and the report of both."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from lipkit._seeds import check_seed
from lipkit.bound import Bound
from lipkit.bounds import Method
from lipkit.certify import head_pairwise, in_norm
from lipkit.cli.commands.bound import loaded, say_weights
from lipkit.cli.commands.request import Wanted
from lipkit.cli.console import progress, terminal
from lipkit.cli.inputs import option_words as names
from lipkit.cli.inputs.datasets import test_set
from lipkit.cli.inputs.device import device_of
from lipkit.cli.inputs.model_fits_data import fitted
from lipkit.cli.runs.assessment import assessed, published, tested
from lipkit.cli.runs.own_model import Given
from lipkit.cli.runs.result_files import by_class, plain, write_json
from lipkit.cli.runs.stored_bound import kept
from lipkit.cli.training.processes import Team
from lipkit.errors import ArgumentError, LipkitError
from lipkit.regions import Everywhere


def evaluate(wanted: Wanted) -> None:
    """Certify, and attack where steps are asked for; print the shares, and write them and the report where wanted.

    In the folder of `--out` each step picks up what an earlier run of the same left: run.json, the weights where no
    file was named for them, bound.safetensors, evaluation/, report.html and report.json. Under torchrun the processes
    share the samples. Cost: the bound, `accuracy`, and for a report `gathered`.
    """
    names.check_json(wanted.json)
    check_seed(wanted.seed, "--seed")
    goal, device = wanted.goal, device_of(wanted.device)
    methods = _methods(wanted)
    model = loaded(wanted.model, wanted.weights, wanted.seed)
    if not isinstance(model, nn.Module):
        raise ArgumentError("Data are evaluated on a model of a Python file; a .pt2 program has a fixed batch.")
    model.eval()
    test = fitted(model, tested(test_set(wanted.data), goal), wanted.model, wanted.data)
    team = Team.join(device)
    given = None if wanted.out is None else Given.settled(wanted, wanted.out, model, test, team)
    model.to(team.device)
    example = test.inputs[:1].to(team.device)

    def find() -> Bound:
        return _constants(model, example, methods, goal.norm)

    with progress() as doing, torch.no_grad():
        doing(f"bounding the model by {wanted.method}")
        bound = find() if given is None else kept(given.bound, model, example, given.prints.code, find, team)
    if team.leads:
        say_weights(wanted.model, wanted.weights, model)
    records = None if given is None else given.records
    found = assessed("evaluating", model, test, bound, goal, wanted.seed, records)
    if team.leads:
        say = terminal().print
        say(str(found), markup=False, highlight=False)
        say(by_class(found, test.classes), soft_wrap=True, markup=False, highlight=False)
        write_json(wanted.json, plain(found))
        if given is not None:
            page = published(given.folder, model, test, found, bound, (), given.about(wanted, team))
            say(f"report in {page}", soft_wrap=True, markup=False, highlight=False)
    team.leave()


def _methods(wanted: Wanted) -> tuple[Method, ...]:
    """What finds constants in the norm of the radii, and in l2 beside it; refuses names that stand for none."""
    l2 = names.metric("2")
    if wanted.goal.norm == 2:
        return (names.method(wanted.method, l2, Everywhere(), None),)
    return (*names.measuring(wanted.method, names.metric(wanted.norm)), *names.measuring(wanted.method, l2))


def _constants(model: nn.Module, example: Tensor, methods: Sequence[Method], p: float) -> Bound:
    """The constants in l_p: found in it, or found in l2 and enlarged, whichever are smaller.

    A layer may know one of the two norms alone, and a method want a region: what one of them gives is enough.
    """
    found: list[Bound] = []
    failed: list[LipkitError] = []
    for method in methods:
        try:
            found.append(in_norm(head_pairwise(model, example, method), p, example[0].numel()))
        except LipkitError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    if len(found) == 1:
        return found[0]
    # The page of an auditor says what was compared.
    ways = "; ".join(dict.fromkeys(bound.how for bound in found))
    return replace(functools.reduce(Bound.best, found), method=f"the smallest for each pair of: {ways}")
