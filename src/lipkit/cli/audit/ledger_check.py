"""The ledger of a private training: what it says was spent, computed again."""

from collections.abc import Sequence
from typing import Any

from lipkit.bound import Kind
from lipkit.cli.audit.audited_run import ANEW, AuditedRun
from lipkit.cli.audit.findings import Findings
from lipkit.cli.training import PrivateRecipe
from lipkit.cli.training.steps.private_steps import LEDGER
from lipkit.privacy import Ledger
from lipkit.report.html.numbers import digits

_SPENT = "what was released stays released: count all planned steps as spent, or restore the newest ledger"


def check_ledger(
    run: AuditedRun, recipe: PrivateRecipe, journal: Sequence[dict[str, Any]], step: int, findings: Findings
) -> None:
    """Compare the ledger of a run with its recipe, its checkpoint at `step` and its journal, epsilon computed again.

    The ledger must be whole and of the plan that the recipe states, and count at least the steps of the checkpoint.
    Every entry of the journal must have the epsilon that the accountant proves for its step. What no file can show:
    that ledger, journal and checkpoint were all replaced by older copies. Cost: the accountant, once an entry.
    """
    file = run.folder / LEDGER
    with findings.reading(file):
        spent = Ledger.read(file, recipe.accountant.accountant)
        here, there = recipe.plan().facts(), spent.plan.facts()
        for name in here:
            if here[name] != there[name]:
                findings.differ(file, f"the {name} of the plan", there[name], here[name], ANEW)
                return
        if spent.steps < step:
            findings.differ(file, "the number of steps", spent.steps, f"at least {step}, by the checkpoint", _SPENT)
            return
        for line in journal:
            found = spent.plan.epsilon_after(line["step"])
            if line["epsilon"] != found:
                where = run.folder / "journal.jsonl"
                findings.differ(where, f"epsilon after step {line['step']}", line["epsilon"], found, ANEW)
                return
        findings.confirm(
            f"ledger: {spent.steps} of {spent.plan.steps} planned steps; epsilon "
            f"{digits(spent.epsilon, Kind.UPPER, 6)} at delta {spent.delta:g} was computed again. No private step can "
            "be done again, since its noise is nowhere"
        )
