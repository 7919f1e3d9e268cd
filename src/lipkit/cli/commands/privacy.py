"""`lipkit privacy`: what a private training has cost, from its ledger alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit.bound import Kind
from lipkit.cli.console import terminal
from lipkit.cli.inputs import option_words
from lipkit.cli.options import argument, option
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.runs.result_files import write_json
from lipkit.cli.training import Accounting
from lipkit.cli.training.steps.private_steps import LEDGER
from lipkit.errors import ArgumentError
from lipkit.privacy import Ledger, Spent
from lipkit.report.html.numbers import digits


@final
@dataclass(frozen=True)
class PrivacyRequest:
    """Say what a private training has cost, from its ledger alone.

    Every step that may have been released counts. Nothing else of the run is read, but for the recipe's accountant in
    run.json, if --accountant names none; nothing is changed.
    """

    run: Path = argument("The --out of a private `lipkit train`, or a ledger.", "RUN")
    accountant: str | None = option(
        "Who proves epsilon: pld (needs the extra privacy), rdp or gaussian; by default the recipe's, or "
        "pld for a ledger alone.", None,
    )  # fmt: skip
    json: Path | None = option("File for the numbers.", None)


def state_privacy(request: PrivacyRequest) -> None:
    """Print the statement of a ledger; a damaged, cut or edited one ends with an error. Cost: the accountant."""
    option_words.check_json(request.json)
    file = request.run / LEDGER if request.run.is_dir() else request.run
    if not file.is_file():
        raise ArgumentError(f"There is no ledger {file}; name the --out of a private training.")
    spent = Ledger.read(file, _accounting(request).accountant)
    say = terminal().print
    for line in _lines(spent):
        say(line, soft_wrap=True, markup=False, highlight=False)
    write_json(request.json, _plain(spent))


def _accounting(request: PrivacyRequest) -> Accounting:
    """Who proves epsilon: as the command says, else as the recipe of the run did."""
    words, chosen = [one.value for one in Accounting], request.accountant
    if chosen is None:
        found = Identity.read(request.run).fields if (request.run / "run.json").is_file() else {}
        chosen = found.get("accountant", Accounting.PLD.value)
    if chosen not in words:
        raise ArgumentError(f"--accountant is one of {', '.join(words)}, got {chosen!r}.")
    return Accounting(chosen)


def _lines(spent: Spent) -> list[str]:
    plan = spent.plan
    if spent.steps == plan.steps:
        return [f"All {plan.steps} planned steps were made: {plan}"]
    return [
        f"{spent.steps} of {plan.steps} planned steps count as made: epsilon "
        f"{digits(spent.epsilon, Kind.UPPER, 6)} at delta {spent.delta:g}.",
        f"Once all are made: {plan}",
    ]


def _plain(spent: Spent) -> dict[str, object]:
    plan = spent.plan
    return {
        "epsilon": spent.epsilon, "delta": spent.delta, "steps": spent.steps, "planned_steps": plan.steps,
        "planned_epsilon": plan.epsilon, "sigma": plan.sigma, "records": plan.records, "batch": plan.batch,
        "relation": plan.sampling.relation, "accountant": plan.accountant.name, "statement": str(plan),
    }  # fmt: skip
