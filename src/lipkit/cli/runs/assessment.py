"""From a model and its constant to shares and a page: the last part of a training, and all of `lipkit certify`."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from lipkit.analysis.dynamics.stored_history import StoredHistory
from lipkit.bound import Bound
from lipkit.bounds.certificates.identity import sha256_of
from lipkit.certify import Evaluation, accuracy
from lipkit.certify.attacks import Attack
from lipkit.cli.console import bar, progress
from lipkit.cli.training import Goal
from lipkit.data import Examples
from lipkit.report.html.page import write_report
from lipkit.report.results.about import About, Prints
from lipkit.report.results.gather import gather_contents
from lipkit.report.results.privacy_claim import PrivacyClaim

# Samples between two writes to the disk where each may take seconds.
_FEW = 16


def take_samples(test: Examples, goal: Goal) -> Examples:
    """The first examples, as many as the goal asks for."""
    return test if goal.samples is None else test.at(range(min(goal.samples, len(test))))


def in_batches(test: Examples, goal: Goal) -> Examples | DataLoader[Any]:
    """The examples in the batches they are evaluated in: small ones where each sample takes long.

    What is stored is stored after each batch, and the draws of an attack depend on the batch.
    """
    return test if goal.local is None else DataLoader(test, _FEW)


def evaluate_goal(
    what: str, model: nn.Module, test: Examples, bound: Bound, goal: Goal, seed: int, records: Path | None,
    near: bool = True,
) -> Evaluation:  # fmt: skip
    """Certify and attack as the goal says, with a bar that says `what`; continued from `records`. Cost: `accuracy`.

    Without `near` the search near each sample is left out.
    """
    with bar(what) as show:
        return accuracy(
            model, in_batches(test, goal), bound, goal.eps, p=goal.p, attack=goal.attack,
            local=goal.local if near else None, records=records, seed=seed,
            progress=lambda done, total: show(done, total, ""),
        )  # fmt: skip


def hash_sources(weights: str, test: Examples, code: str) -> Prints:
    """The hashes that a page names: those of weights and code as given, and those of the examples."""
    return Prints(weights, sha256_of(test.inputs), sha256_of(test.labels), code)


def current_date() -> str:
    """The date of a page."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def publish_report(
    folder: Path, model: nn.Module, test: Examples, evaluation: Evaluation, bound: Bound,
    journal: Sequence[Mapping[str, Any]], about: About, attack: Attack | None,
    profile: StoredHistory | None = None, privacy: PrivacyClaim | None = None,
) -> Path:  # fmt: skip
    """Measure what the page shows beside the evaluation, and write it; returns where it is. Cost: `gather_contents`."""
    with progress() as doing:
        doing("writing the report")
        contents = gather_contents(model, test, evaluation, bound, journal, about, attack, profile, privacy)
        page, _ = write_report(contents, folder)
    return page
