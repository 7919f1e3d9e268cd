"""A private run from its command to its report, its statement and its audit; and what an audit of it catches."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.main import Code, main
from lipkit.cli.training import checkpoint
from lipkit.cli.training.journal import Journal
from lipkit.cli.training.steps.private_steps import LEDGER
from lipkit.privacy import RDP, Inputs, Ledger, Plan
from lipkit.report.html.claims import read_claims
from lipkit.report.html.page import render_page
from lipkit.report.results.contents import Contents
from support.sealed_files import read_lines, write_lines

pytestmark = pytest.mark.train

RECIPE = '''"""Three blobs, privately; `center` shows that test samples are moved as the records are."""
from dataclasses import dataclass

from lipkit.cli.training import Tuning
from lipkit.privacy import Inputs
from support.programs.private_training import PrivateBlobs


@dataclass(frozen=True)
class Blobs(PrivateBlobs):
    """Blobs around a public center."""

    def inputs(self) -> Inputs:
        return Inputs((2,), 5.0, center=0.25)
'''


def quietly(words: list[str]) -> int:
    with torch.random.fork_rng(devices=[]):
        return main(words)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("private")
    (root / "blobs.py").write_text(RECIPE)
    assert quietly(["train", str(root / "blobs.py"), "--out", str(root / "run")]) == Code.OK
    return root / "run"


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def test_an_honest_private_run_holds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(["audit", str(run)]) == Code.OK
    said = capsys.readouterr().out
    assert "ledger: 40 of 40 planned steps; epsilon" in said
    assert "holds" in said


def test_a_private_training_cannot_be_repeated(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(["audit", str(run), "--retrain"]) == Code.AUDIT_PARTIAL
    assert "noise is known to nobody" in capsys.readouterr().out


def test_the_page_says_what_the_ledger_says(run: Path) -> None:
    claims = {claim.name: claim for claim in read_claims((run / "report.html").read_text())}
    spent = Ledger.read(run / LEDGER, RDP())
    assert float(claims["epsilon"].value) == spent.epsilon
    # Rounded up for the reader, never down.
    assert spent.epsilon <= float(claims["epsilon"].words) <= 8.0 * (1 + 1e-4)
    assert float(claims["delta"].value) == 1e-3
    assert claims["tuning"].words.startswith("chosen without the private records")
    assert claims["plan"].words == str(spent.plan)
    assert "was not recorded" not in (run / "report.html").read_text()


PLANTED = '''"""Three blobs with 60 canaries, each put in by its own coin; the settings are the best of about three."""
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lipkit.cli.training import Sets, Tuning
from lipkit.privacy import RandomRuns
from support.programs.private_training import PrivateBlobs


@dataclass(frozen=True)
class Planted(PrivateBlobs):
    """Blobs with wrong labels among them."""

    @property
    def tuning(self) -> Tuning:
        return Tuning.PAID

    @property
    def runs_tried(self) -> RandomRuns:
        return RandomRuns(3.0)

    def canaries(self) -> tuple[Tensor, Tensor, Tensor]:
        chance = torch.Generator().manual_seed(11)
        x, y = 5 * torch.randn(60, 2, generator=chance), torch.randint(3, (60,), generator=chance)
        return x, y, torch.rand(60, generator=chance) < 0.5

    def sets(self) -> Sets:
        known, (x, y, coins) = super().sets(), self.canaries()
        train = replace(
            known.train, inputs=torch.cat([known.train.inputs, x[coins]]),
            labels=torch.cat([known.train.labels, y[coins]]),
        )
        return Sets(train, known.test)

    def canary_scores(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        x, y, coins = self.canaries()
        scores = model(self.inputs()(x)).gather(1, y[:, None])[:, 0]
        return scores[coins], scores[~coins]
'''


def test_canaries_and_paid_tuning_stand_in_the_report_and_are_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dp_accounting", reason="the price of tuning needs dp-accounting")
    (tmp_path / "planted.py").write_text(PLANTED)
    run = tmp_path / "run"
    assert quietly(["train", str(tmp_path / "planted.py"), "--out", str(run)]) == Code.OK
    found = Contents.from_json((run / "report.json").read_text()).privacy
    assert found is not None
    assert found.canaries is not None
    assert found.tuned is not None
    assert found.canaries.inside + found.canaries.outside == 60
    assert found.canaries.least <= found.epsilon < found.tuned.epsilon
    assert quietly(["audit", str(run)]) == Code.OK
    edit_report(canaries=replace(found.canaries, least=0.5))(run)
    assert quietly(["audit", str(run)]) == Code.AUDIT_FAILED
    assert "privacy.canaries.least" in capsys.readouterr().err


def test_test_samples_are_moved_as_the_records_are(honest: Path) -> None:
    recipe = recipe_class(honest.parent / "blobs.py")()
    raw = recipe.sets().test.inputs
    data = Contents.from_json((honest / "report.json").read_text()).data
    moved = Inputs((2,), 5.0, center=0.25)(raw)
    assert (data.low, data.high) == (float(moved.min()), float(moved.max()))
    assert data.low != float(raw.min())


# Forgeries. A forger computes every checksum anew, and knows how a ledger is chained.


def write_ledger(run: Path, plan: Plan, steps: int) -> None:
    (run / LEDGER).unlink()
    with Ledger.open(run / LEDGER, plan, reserve=1) as ledger:
        for _ in range(steps):
            ledger.charge()


def fewer_steps(run: Path) -> None:
    write_ledger(run, Ledger.read(run / LEDGER, RDP()).plan, 20)


def more_noise(run: Path) -> None:
    old = Ledger.read(run / LEDGER, RDP()).plan
    write_ledger(run, Plan(old.records, old.batch, old.steps, old.delta, sigma=2 * old.sigma, accountant=RDP()), 40)


def cut(run: Path) -> None:
    (run / LEDGER).write_bytes((run / LEDGER).read_bytes()[:-5])


def removed(run: Path) -> None:
    (run / LEDGER).unlink()


def edited(run: Path) -> None:
    (run / LEDGER).write_bytes((run / LEDGER).read_bytes().replace(b"240", b"241"))


def edit_journal(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        path = run / "journal.jsonl"
        lines = read_lines(path)
        change(lines)
        write_lines(path, lines)
        state = checkpoint.load(run / "checkpoint.safetensors")
        checkpoint.save(run / "checkpoint.safetensors", {**state, "journal": Journal(path).digest()})

    return forge


def edit_report(**claims: Any) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        path = run / "report.json"
        found = Contents.from_json(path.read_text())
        assert found.privacy is not None
        forged = replace(found, privacy=replace(found.privacy, **claims))
        path.write_text(forged.to_json())
        (run / "report.html").write_text(render_page(forged))

    return forge


@pytest.mark.parametrize(
    ("forge", "named"),
    [
        (fewer_steps, LEDGER),
        (more_noise, "sigma of the plan"),
        (cut, LEDGER),
        (removed, LEDGER),
        (edited, LEDGER),
        (edit_journal(lambda lines: lines[-1].update(epsilon=1.0)), "epsilon after step 40"),
        (edit_journal(lambda lines: lines[3].update(loss=0.5)), "strange 'loss'"),
        (edit_journal(lambda lines: lines.pop(3)), "no entry for step"),
        (edit_report(epsilon=1.0), "privacy.epsilon"),
        (edit_report(delta=1e-9), "privacy.delta"),
        (edit_report(tuning="free"), "privacy.tuning"),
    ],
)
def test_a_forgery_is_named(
    run: Path, forge: Callable[[Path], None], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(run)
    assert quietly(["audit", str(run)]) == Code.AUDIT_FAILED
    assert named in capsys.readouterr().err


def test_the_statement_needs_the_ledger_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = tmp_path / "elsewhere"
    shutil.copy(run / LEDGER, alone)
    figures = tmp_path / "figures.json"
    assert quietly(["privacy", str(alone), "--accountant", "rdp", "--json", str(figures)]) == Code.OK
    spent = Ledger.read(run / LEDGER, RDP())
    assert f"All 40 planned steps were made: {spent.plan}" in capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert (found["epsilon"], found["steps"], found["statement"]) == (spent.epsilon, 40, str(spent.plan))


def test_the_statement_is_by_the_accountant_of_the_recipe(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quietly(["privacy", str(run)]) == Code.OK
    assert "accountant: Rényi divergences" in capsys.readouterr().out
    # A ledger alone names no accountant, so the usual one speaks; without its package the advice is a word to type.
    shutil.copy(run / LEDGER, tmp_path / "alone")
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert quietly(["privacy", str(tmp_path / "alone")]) != Code.OK
    assert "--accountant=rdp" in capsys.readouterr().err


def test_the_statement_of_a_run_that_is_under_way(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fewer_steps(run)
    assert quietly(["privacy", str(run), "--accountant", "rdp"]) == Code.OK
    said = capsys.readouterr().out
    assert "20 of 40 planned steps count as made: epsilon " in said
    assert float(said.split("epsilon ")[1].split()[0]) >= Ledger.read(run / LEDGER, RDP()).epsilon


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "There is no ledger nowhere"),
        (["{run}", "--accountant", "moments"], "one of pld, rdp, gaussian, got 'moments'"),
    ],
)
def test_bad_input_gets_one_sentence(
    run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quietly(["privacy", *(word.format(run=run) for word in words)]) == Code.USAGE
    assert said in capsys.readouterr().err


def test_a_damaged_ledger_states_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited(run)
    assert quietly(["privacy", str(run), "--accountant", "rdp"]) != Code.OK
    assert LEDGER in capsys.readouterr().err
