"""The training of a run: its journal, its last checkpoint, and the weights that came out; and the steps done again."""

import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipkit.cli.audit.audited_run import ANEW, AuditedRun, plain_tensors
from lipkit.cli.audit.findings import Findings
from lipkit.cli.audit.ledger_check import check_ledger
from lipkit.cli.inputs.safetensors_file import tensors_from
from lipkit.cli.training import PrivateRecipe, Recipe, checkpoint
from lipkit.cli.training.journal import Journal
from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.cli.training.recipe import plain_fields
from lipkit.cli.training.steps.private_steps import steps_between_entries
from lipkit.errors import RecordError
from lipkit.report.results.gather import describe_error

Entries = list[dict[str, Any]]

# The loss of one step on another machine: sums of some thousand float32 numbers in another order.
_LOSS = 1e-3
# The constant that a training watches: an estimate, by an iteration that starts at random.
_WATCHED = 0.05
# Learning rates are products of a few float64 numbers.
_RATE = 1e-12


def check_training(
    run: AuditedRun, recipe: Recipe, findings: Findings, same_machine: bool, retrain: bool
) -> list[dict[str, Any]]:
    """Compare journal, checkpoint and weights with each other and with what the recipe does; returns the journal.

    The first step is done again from the seed: its loss is the first entry of the journal. With `retrain` all steps
    are, and the weights must come out the same. No step of a private training can be done again, because its noise is
    nowhere; there the ledger is checked instead. Cost: one step, or the whole training.
    """
    folder = run.folder
    journal, entries = folder / "journal.jsonl", Journal(folder / "journal.jsonl")
    lines: Entries = []
    with findings.reading(journal):
        lines = _require_numbers(entries.read(), journal, isinstance(recipe, PrivateRecipe))
    state: dict[str, Any] = {}
    with findings.reading(folder / "checkpoint.safetensors"):
        state = _require_state(checkpoint.load(folder / "checkpoint.safetensors"), folder / "checkpoint.safetensors")
        if _check_checkpoint(run, recipe, state, findings):
            _check_weights(run, recipe, state, findings)
    if lines and state:
        if state.get("journal") != entries.digest():
            findings.refuse(
                journal,
                f"{journal} is another file than the one that belongs to checkpoint.safetensors: lines were changed; "
                f"{ANEW}.",
            )
        _check_journal(journal, recipe, lines, state, findings)
    elif state:
        findings.refuse(journal, f"{journal} has no entry; {ANEW}.")
    if isinstance(recipe, PrivateRecipe):
        check_ledger(run, recipe, lines, state.get("step", 0), findings)
        if retrain:
            findings.skipped.append("A private training is not repeated: its noise is known to nobody.")
    elif lines and state:
        _repeat(run, recipe, lines, state, findings, same_machine, retrain)
    return lines


def _require_numbers(lines: Entries, file: Path, private: bool) -> Entries:
    """The entries of a journal, if each has the numbers that a training writes."""
    names = ("rate", "epsilon") if private else ("loss", "rate", "seconds", "constant")
    for line in lines:
        for name in names:
            value, absent = line.get(name), name == "constant" and name in line and line[name] is None
            if not absent and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise RecordError(f"{file}: the entry of step {line['step']} has {value!r} as its {name}; {ANEW}.")
        if strange := line.keys() - {"step", *names}:
            raise RecordError(f"{file}: the entry of step {line['step']} has a strange {min(strange)!r}; {ANEW}.")
    return lines


def _require_state(state: dict[str, Any], file: Path) -> dict[str, Any]:
    """The state of a checkpoint, if it has the parts that are read here."""
    kinds: dict[str, type] = {
        "fields": dict, "steps": int, "step": int, "size": int, "model": dict, "average": dict, "journal": str,
    }  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(state.get(name), kind):
            raise RecordError(f"{file} has no {name} of a training; {ANEW}.")
    return state


def _check_checkpoint(run: AuditedRun, recipe: Recipe, state: Mapping[str, Any], findings: Findings) -> bool:
    file = run.folder / "checkpoint.safetensors"
    before = len(findings.mismatches)
    here = plain_fields(recipe)
    for name in sorted({*here, *state["fields"]} - {"data"}):
        if state["fields"].get(name) != here.get(name):
            findings.differ(file, f"the setting {name}", state["fields"].get(name), here.get(name), ANEW)
    steps = (
        recipe.plan().steps
        if isinstance(recipe, PrivateRecipe)
        else max(1, len(recipe.sets().train) // recipe.batch) * recipe.epochs
    )
    if state["steps"] != steps:
        findings.differ(file, "the number of steps of the training", state["steps"], steps, ANEW)
    if state["step"] != state["steps"]:
        findings.differ(
            file, "the step it was saved at", state["step"], f"{state['steps']} as the last step",
            "it is no end of a training: run the command of run.json, which continues it",
        )  # fmt: skip
    return len(findings.mismatches) == before


def _check_weights(run: AuditedRun, recipe: Recipe, state: Mapping[str, Any], findings: Findings) -> None:
    """Compare the weights with those at the end of the training, averaged and settled as the recipe says."""
    made = recipe.model().to(run.device)
    try:
        made.load_state_dict(state["model"])
        if state["average"]:
            made.load_state_dict(state["average"])
    except (RuntimeError, TypeError, AttributeError) as error:
        file = run.folder / "checkpoint.safetensors"
        raise RecordError(f"{file} has other tensors than the model ({describe_error(error)}); {ANEW}.") from error
    recipe.settled(made)
    wanted, given = plain_tensors(made.state_dict()), plain_tensors(tensors_from(run.weights)[0])
    # What `settled` computes is rounded otherwise on another device.
    exact = run.at_home or type(recipe).settled is Recipe.settled
    for name in sorted({*wanted, *given}):
        if name not in wanted or name not in given or not _is_same(wanted[name], given[name], exact):
            findings.refuse(
                run.weights,
                f"{run.weights} has another tensor {name} than the last step in checkpoint.safetensors gives; {ANEW}.",
            )
            return
    findings.confirm(f"weights: {len(wanted)} tensors are those after the last of {state['steps']} steps")


def _is_same(a: Tensor, b: Tensor, exact: bool) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if exact or not a.is_floating_point():
        return torch.equal(a, b) or (a.isnan().equal(b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
    return torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6)


def _check_journal(file: Path, recipe: Recipe, lines: Entries, state: Mapping[str, Any], findings: Findings) -> None:
    """Compare the steps and the learning rates with what the recipe says of them."""
    total = state["steps"]
    epoch = steps_between_entries(total) if isinstance(recipe, PrivateRecipe) else total // recipe.epochs
    steps = [line["step"] for line in lines]
    if steps != sorted(set(steps)) or steps[0] != 1 or steps[-1] != total:
        findings.differ(file, "the order of steps", f"from {steps[0]} to {steps[-1]}", f"1 to {total}, rising", ANEW)
        return
    if missing := set(range(epoch, total + 1, epoch)) - set(steps):
        findings.refuse(file, f"{file} has no entry for step {min(missing)}, the end of an epoch; {ANEW}.")
    for line in lines:
        rate = recipe.rate((line["step"] - 1) / total)
        if not math.isclose(line.get("rate", math.nan), rate, rel_tol=_RATE, abs_tol=_RATE):
            findings.differ(file, f"the rate of step {line['step']}", line.get("rate"), rate, ANEW)
            return


class _EnoughError(Exception):
    """Ends a training that is only repeated in part."""


def _repeat(
    run: AuditedRun, recipe: Recipe, lines: Entries, state: Mapping[str, Any], findings: Findings, same_machine: bool,
    retrain: bool,
) -> None:  # fmt: skip
    why = ""
    if state["size"] > 1:
        why = f"it was trained by {state['size']} processes, and this is one"
    elif not run.at_home:
        why = f"it was trained on another device than {run.device.type}, which draws other numbers"
    elif type(recipe).targets is not Recipe.targets and not retrain:
        why = "the recipe computes its targets first, which takes long; --retrain does it"
    if why:
        findings.skipped.append(f"No step of the training was done again: {why}.")
        return

    def stop(_done: int, _total: int, _said: str) -> None:
        raise _EnoughError

    with tempfile.TemporaryDirectory() as scratch:
        again = _train_again(recipe, Path(scratch), run, None if retrain else stop)
        repeated = Journal(Path(scratch) / "journal.jsonl").read()
    losses = {line["step"]: line["loss"] for line in repeated}
    constants = {line["step"]: line["constant"] for line in repeated}
    file = run.folder / "journal.jsonl"
    # Entries are also written by the clock, so only some steps have one in both.
    common = [line for line in lines if line["step"] in losses]
    for line in common[: None if same_machine else 1]:
        step, loss = line["step"], losses[line["step"]]
        same = line["loss"] == loss if same_machine else math.isclose(line["loss"], loss, rel_tol=_LOSS, abs_tol=_LOSS)
        if not same:
            findings.differ(
                file, f"the loss of step {step}", line["loss"], loss,
                "the seed, the data or the line was changed: take the original, or run the command of run.json again",
            )  # fmt: skip
            return
    for line in common[: None if same_machine else 1]:
        said, found = line["constant"], constants[line["step"]]
        # Constants that are watched are estimates, by draws and by an average over steps.
        if (said is None) != (found is None) or (said is not None and not math.isclose(said, found, rel_tol=_WATCHED)):
            findings.differ(file, f"the constant at step {line['step']}", said, found, ANEW)
            return
    how = "bit for bit" if same_machine else f"to {_LOSS:g}, since the machine or its software is another"
    done = f"{len(common)} losses of {len(lines)}" if retrain else "the loss of the first step"
    findings.confirm(f"journal: {len(lines)} entries; {done} came out again {how}")
    if again is None:
        return
    if not same_machine:
        findings.skipped.append(
            "The weights of the repeated training were not compared: on another machine roundings add up to others."
        )
    elif any(not torch.equal(value, again[name]) for name, value in plain_tensors(run.model.state_dict()).items()):
        findings.refuse(
            run.weights, f"{run.weights} has other weights than the training gives when it is done again; {ANEW}."
        )
    else:
        findings.confirm("weights: the training was done again and gives them bit for bit")


def _train_again(
    recipe: Recipe, folder: Path, run: AuditedRun, report: Callable[[int, int, str], None] | None
) -> dict[str, Tensor] | None:
    """The weights of a training from its start; None where `report` ends it before."""
    try:
        return plain_tensors(train(recipe, folder, Team(run.device), report).model.state_dict())
    except _EnoughError:
        return None
