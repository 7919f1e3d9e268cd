"""`lipkit audit` passes on honest runs, and names the file of every forgery."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.certify import Evaluation
from lipkit.certify.evaluate.records import read_samples
from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.inputs.safetensors_file import tensors_from, tensors_to
from lipkit.cli.main import Code, main
from lipkit.cli.training import checkpoint
from lipkit.cli.training.journal import Journal
from lipkit.cli.training.loop import train
from lipkit.cli.training.overrides import make_quick_recipe
from lipkit.cli.training.processes import Team
from lipkit.report.html.page import render_page
from lipkit.report.results.contents import ClassRow, Contents
from support.sealed_files import read_lines, read_object, write_lines, write_object

RECIPE = '''"""A tiny classifier of digits."""
from dataclasses import dataclass, replace

from lipkit.certify.attacks import PGD
from lipkit.cli.demo.digits import Digits
from lipkit.cli.training import Goal


@dataclass(frozen=True)
class Tiny(Digits):
    """Digits, 24 of them tested."""

    ema: float = 0.5

    @property
    def goal(self) -> Goal:
        return Goal(self.eps, attack=PGD(eps=1.0, steps=3, low=0.0, high=1.0), samples=24)
'''
MODEL = '''"""A small network."""
import torch
from torch import nn


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
'''


@dataclass(frozen=True)
class Honest:
    """A run, the same from another seed, one stopped after its first epoch, the recipe, and a run without attack."""

    run: Path
    other: Path
    half: Path
    recipe: Path
    plain: Path


def quietly(words: list[str]) -> int:
    with torch.random.fork_rng(devices=[]):
        return main(words)


class _StopError(Exception):
    pass


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    root = tmp_path_factory.mktemp("runs")
    recipe = root / "tiny.py"
    recipe.write_text(RECIPE)
    for seed in (3, 4):
        words = ["train", str(recipe), "--out", str(root / f"seed{seed}"), "--quick", "--seed", str(seed)]
        assert quietly([*words, "--json", str(root / f"seed{seed}.json")]) == Code.OK

    def stop(done: int, _total: int, _said: str) -> None:
        if done == 42:
            raise _StopError

    quick = make_quick_recipe(recipe_class(recipe), ["--seed=3"])
    with torch.random.fork_rng(devices=[]), pytest.raises(_StopError):
        train(quick, root / "half", Team(torch.device("cpu")), stop)
    quiet = root / "quiet.py"
    quiet.write_text(RECIPE.replace("attack=PGD(eps=1.0, steps=3, low=0.0, high=1.0), ", ""))
    assert quietly(["train", str(quiet), "--out", str(root / "plain"), "--quick", "--seed", "3"]) == Code.OK
    return Honest(root / "seed3", root / "seed4", root / "half", recipe, root / "plain")


# Forgeries of a run. A forger computes every checksum anew.


def edit_bound(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Honest], None]:
    def forge(run: Path, _: Honest) -> None:
        state = checkpoint.load(run / "bound.safetensors")
        change(state)
        checkpoint.save(run / "bound.safetensors", state)

    return forge


def edit_sample(change: Callable[[dict[str, Any]], None], right: bool = True) -> Callable[[Path, Honest], None]:
    def forge(run: Path, _: Honest) -> None:
        path = run / "evaluation" / "samples-0000.jsonl"
        lines = read_lines(path)
        change(next(line for line in lines if (line["label"] == line["predicted"]) is right))
        write_lines(path, lines)

    return forge


def edit_lines(name: str, change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Path, Honest], None]:
    def forge(run: Path, _: Honest) -> None:
        lines = read_lines(run / name)
        change(lines)
        write_lines(run / name, lines)

    return forge


def edit_object(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Honest], None]:
    def forge(run: Path, _: Honest) -> None:
        content = read_object(run / name)
        change(content)
        write_object(run / name, content)

    return forge


def edit_report(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Honest], None]:
    def forge(run: Path, _: Honest) -> None:
        path = run / "report.json"
        content = from_sealed_json(path.read_bytes().rstrip(b"\n"), "", "")
        change(content)
        path.write_bytes(to_sealed_json(content) + b"\n")

    return forge


def edit_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path, Honest], None]:
    def forge(run: Path, _: Honest) -> None:
        tensors, _about = tensors_from(run / "model.safetensors")
        change(tensors)
        (run / "model.safetensors").write_bytes(tensors_to(tensors))

    return forge


def flip_a_bit(tensors: dict[str, torch.Tensor]) -> None:
    first = next(iter(tensors.values())).flatten()
    first.view(torch.int32)[5] ^= 1


def lower_everything(run: Path, honest: Honest) -> None:
    """A smaller constant, and all that follows from it, made by the program without its own search for errors."""
    edit_bound(lambda state: state["log_value"].sub_(0.0005))(run, honest)
    shutil.rmtree(run / "evaluation")
    words = read_object(run / "run.json")["command"].split()
    words[words.index("--out") + 1] = str(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lipkit.certify.evaluate.accuracy.refuse_disproved", lambda *_: None)
        assert quietly(words[1:]) == Code.OK


def change_page(run: Path, _: Honest) -> None:
    path = run / "report.html"
    text = path.read_text()
    counts = sorted({int(count) for count in re.findall(r"(\d+) of 24\b", text)} - {24})
    assert counts
    path.write_text(text.replace(f"{counts[-1]} of 24", "24 of 24"))


def reseed(content: dict[str, Any]) -> None:
    content["fields"]["seed"] = "5"
    content["command"] = content["command"].replace("--seed=3", "--seed=5")


def swap_neighbour(content: dict[str, Any]) -> None:
    content["gallery"]["hardest"][0]["distance"] *= 0.5


def count_one_more(content: dict[str, Any]) -> None:
    content["overall"]["certified"][0]["count"] += 1


def use_half_trained(run: Path, honest: Honest) -> None:
    state = checkpoint.load(honest.half / "checkpoint.safetensors")
    weights = {name: value.clone() for name, value in state["average"].items()}
    (run / "model.safetensors").write_bytes(tensors_to(weights))


def copy_from(name: str) -> Callable[[Path, Honest], None]:
    def forge(run: Path, honest: Honest) -> None:
        shutil.copy(honest.other / name, run / name)

    return forge


def stop_early(run: Path, honest: Honest) -> None:
    shutil.copy(honest.half / "checkpoint.safetensors", run / "checkpoint.safetensors")


def flip_byte(name: str) -> Callable[[Path, Honest], None]:
    def forge(run: Path, _: Honest) -> None:
        content = bytearray((run / name).read_bytes())
        content[len(content) // 2] ^= 4
        (run / name).write_bytes(content)

    return forge


def change_recipe(run: Path, honest: Honest) -> None:
    # The recipe of the auditor is another than the one that was run.
    other = run.parent / "changed.py"
    other.write_text(honest.recipe.read_text().replace("steps=3", "steps=4"))
    edit_object("run.json", lambda c: c.update(command=c["command"].replace(str(honest.recipe), str(other))))(
        run, honest
    )


FORGERIES: dict[str, tuple[Callable[[Path, Honest], None], str]] = {
    "constant lowered": (edit_bound(lambda s: s["log_value"].sub_(0.05)), r"bound\.safetensors: the constant"),
    "constant lowered, with all that follows": (lower_everything, r"bound\.safetensors: the constant"),
    "constant lowered in the last digits": (
        edit_bound(lambda s: s["log_value"].sub_(1e-12)),
        r"bound\.safetensors: the constant",
    ),
    "stated as computed": (
        edit_bound(lambda s: s.update(method="PairwiseHead(DAG), certified by hand")),
        r"bound\.safetensors: the way it was found",
    ),
    "exact instead of upper": (edit_bound(lambda s: s.update(kind="EXACT")), r"bound\.safetensors: the kind"),
    "bound of another run": (copy_from("bound.safetensors"), r"bound\.safetensors: the hash of the network"),
    "a radius raised": (edit_sample(lambda s: s.update(radius=s["radius"] * 1.01)), "evaluation: the radius of sample"),
    "a radius raised a little": (
        edit_sample(lambda s: s.update(radius=s["radius"] * (1 + 1e-8))),
        "evaluation: the radius of sample",
    ),
    "a label changed": (
        edit_sample(lambda s: s.update(label=s["predicted"]), right=False),
        "evaluation: the label of sample",
    ),
    "a decision changed": (
        edit_sample(lambda s: s.update(predicted=s["label"]), right=False),
        "evaluation: the class of sample",
    ),
    "a class beyond all numbers": (
        edit_sample(lambda s: s.update(predicted=10**30)),
        r"samples-0000\.jsonl, line 1 is no result of a sample",
    ),
    "an attack undone": (
        edit_sample(lambda s: s.update(broken=[not one for one in s["broken"]])),
        "evaluation: the outcome of attacks on sample",
    ),
    "samples left out": (edit_lines("evaluation/samples-0000.jsonl", lambda v: v.pop()), "evaluation lacks sample 23"),
    "a sample twice": (
        edit_lines("evaluation/samples-0000.jsonl", lambda v: v.append(v[0])),
        "25 lines for 24 samples",
    ),
    "results at other radii": (
        edit_object("evaluation/settings.json", lambda c: c.update(eps=[0.5, 0.75])),
        r"settings\.json: eps\[0\]",
    ),
    "results of another attack": (
        edit_object("evaluation/settings.json", lambda c: c["attack"].update(steps="40")),
        r"settings\.json: attack\.steps",
    ),
    "the page says more": (change_page, r"report\.html: The page says .*: 24 of 24"),
    "the report counts more": (edit_report(count_one_more), r"report\.json says that .* certified up to 0\.25"),
    "the report has another constant": (
        edit_report(lambda c: c["constant"].update(log_value=c["constant"]["log_value"] - 0.1)),
        r"report\.json: constant\.log_value",
    ),
    "a neighbour moved": (edit_report(swap_neighbour), r"report\.json says that the neighbour of image"),
    "a hash of the report": (
        edit_report(lambda c: c["about"]["prints"].update(weights="0" * 64)),
        r"report\.json: about\.prints\.weights",
    ),
    "another seed on the page": (edit_report(lambda c: c["about"].update(seed=7)), r"report\.json: about\.seed"),
    "one bit of the weights": (edit_weights(flip_a_bit), r"model\.safetensors has another tensor"),
    "weights of another run": (copy_from("model.safetensors"), r"model\.safetensors has another tensor"),
    "weights before the end": (use_half_trained, r"model\.safetensors has another tensor"),
    "a checkpoint before the end": (stop_early, r"checkpoint\.safetensors: the step it was saved at"),
    "a checkpoint of another run": (copy_from("checkpoint.safetensors"), r"checkpoint\.safetensors: the setting seed"),
    "a loss edited": (
        edit_lines("journal.jsonl", lambda v: v[-1].update(loss=0.01)),
        r"journal\.jsonl is another file",
    ),
    "the first loss edited": (
        edit_lines("journal.jsonl", lambda v: v[0].update(loss=0.01)),
        r"journal\.jsonl: the loss of step 1",
    ),
    # All between the first step and the last: a slow machine has more entries than the ends of epochs.
    "an epoch left out": (
        edit_lines("journal.jsonl", lambda v: v.__delitem__(slice(1, -1))),
        r"journal\.jsonl has no entry for step",
    ),
    "steps renumbered": (
        edit_lines("journal.jsonl", lambda v: v[-1].update(step=999)),
        r"journal\.jsonl: the order of steps",
    ),
    "the seed changed": (
        edit_object("run.json", reseed),
        r"checkpoint\.safetensors: the setting seed is 3 there, and 5",
    ),
    "a setting changed": (
        edit_object("run.json", lambda c: c["fields"].update(temperature="8.0")),
        r"run\.json: the setting temperature is 8\.0 there, and 4\.0",
    ),
    "another recipe": (change_recipe, r"run\.json: the hash of the code"),
    "a flipped byte of the journal": (
        flip_byte("journal.jsonl"),
        r"journal\.jsonl, line \d+ does not fit its checksum",
    ),
    "a flipped byte of the weights": (flip_byte("model.safetensors"), r"model\.safetensors does not fit its checksum"),
    "a flipped byte of the report": (flip_byte("report.json"), r"report\.json: The report does not fit its checksum"),
    "no journal": (lambda run, _: (run / "journal.jsonl").unlink(), r"journal\.jsonl has no entry"),
    "no report": (lambda run, _: (run / "report.json").unlink(), r"report\.json cannot be read"),
}


@pytest.mark.train
def test_an_honest_run_holds(honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", str(honest.run), "--shares", f"{honest.run}.json", "--json", str(tmp_path / "found.json")]
    assert quietly(words) == Code.OK
    said = capsys.readouterr().out
    for sentence in (
        "weights: 4 tensors are those after the last of 42 steps",
        "the loss of the first step came out again bit for bit",
        "constant: 90 values up to",
        "samples: decisions and radii of all 24 came out again",
        "attack: 24 samples attacked again, all with the same outcome",
        "report: every number of report.json was computed again",
        "page: report.html says what report.json says",
        f"{honest.run} holds. Of 24 samples,",
    ):
        assert sentence in said
    # Every radius is named: the largest alone, at which nothing may be proven, says too little.
    assert re.search(r"are right, and proven are \d+ within 0\.25, \d+ within 0\.5\.", said)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["holds"], found["whole"], found["mismatches"]) == (True, True, [])
    # Nothing of the run is touched.
    assert not list(honest.run.glob("counterexample*"))


@pytest.mark.train
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named(name: str, honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge, sentence = FORGERIES[name]
    run = tmp_path / "run"
    shutil.copytree(honest.run, run)
    forge(run, honest)
    capsys.readouterr()
    assert quietly(["audit", str(run)]) == Code.AUDIT_FAILED
    said = capsys.readouterr().err
    assert [line for line in said.splitlines() if re.search(sentence, line)], said


# Forgeries of a run without an attack, whose report and page follow from what was forged.


def follow(run: Path) -> None:
    """Count the report again from the stored samples, and draw the page."""
    path = run / "report.json"
    old = Contents.from_json(path.read_text())
    samples = list(read_samples(run / "evaluation").values())
    found = Evaluation.of(samples, old.eps, old.p, old.level, old.failure)
    rows = tuple(ClassRow(old.classes[k], shares) for k, shares in found.classes.items())
    columns = zip(*((s.broken, s.unproven) for s in found.samples), strict=True)
    outcomes = replace(old.outcomes, **dict(zip(("broken", "unproven"), map(tuple, columns), strict=True)))
    counted = {"overall": found.overall, "by_class": rows, "outcomes": outcomes, "unproven": found.unproven}
    path.write_text(replace(old, **counted).to_json())
    draw(run)


def draw(run: Path) -> None:
    (run / "report.html").write_text(render_page(Contents.from_json((run / "report.json").read_text())))


def mark_samples(**marks: Any) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        path = run / "evaluation" / "samples-0000.jsonl"
        write_lines(path, [{**line, **marks} for line in read_lines(path)])
        follow(run)

    return forge


def claim(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        edit_report(lambda content: change(content["about"]))(run, None)  # pyright: ignore[reportArgumentType]
        draw(run)

    return forge


def edit_checkpoint(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        state = checkpoint.load(run / "checkpoint.safetensors")
        change(state)
        checkpoint.save(run / "checkpoint.safetensors", state)

    return forge


def edit_history(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        lines = read_lines(run / "journal.jsonl")
        for line in lines:
            change(line)
        write_lines(run / "journal.jsonl", lines)
        edit_checkpoint(lambda state: state.update(journal=Journal(run / "journal.jsonl").digest()))(run)

    return forge


def forge_fingerprint(run: Path) -> None:
    other = "0" * 64
    edit_bound(lambda s: s.update({"of network": other}))(run, None)  # pyright: ignore[reportArgumentType]
    settings = run / "evaluation" / "settings.json"
    content = read_object(settings)
    content["bound"]["network"] = other
    write_object(settings, content)


def lose_neighbours(run: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        for one in (*content["gallery"]["hardest"], *content["gallery"]["safest"]):
            one.update(neighbour=None, became=None, distance=None)

    edit_report(change)(run, None)  # pyright: ignore[reportArgumentType]
    draw(run)


def draw_elsewhere(run: Path, drawing: str) -> None:
    path = run / "report.html"
    text = re.sub(r'(<meta name="generator" content=")[^"]*', r"\1matplotlib 1.0", path.read_text())
    path.write_text(text.replace("</svg>", f"{drawing}</svg>", 1))


FOLLOWED: dict[str, tuple[Callable[[Path], None], str]] = {
    "an attack that never was": (mark_samples(broken=[False, False]), "evaluation: the number of attacks of sample 0"),
    "a stated constant": (mark_samples(stated=True), "evaluation: the origin of the constant of sample 0"),
    "another failure": (mark_samples(failure=1e-9), "evaluation: the probability of failure of sample 0"),
    "an attack without a proof": (mark_samples(unproven=True), "evaluation: the mark for an attack without a proof"),
    "the deployed precision": (mark_samples(otherwise=True), "evaluation: sample 0, by the model as it runs, is"),
    "another recipe's name": (claim(lambda c: c.update(recipe="Large")), r"report\.json: about\.recipe is Large"),
    "a setting added": (claim(lambda c: c["fields"].append(["proven by", "x"])), r"report\.json: about\.fields"),
    "a setting left out": (claim(lambda c: c["fields"].pop()), r"report\.json: about\.fields"),
    "a command of another recipe": (
        claim(lambda c: c.update(command=c["command"].replace("quiet.py", "large.py"))),
        r"report\.json: the command is",
    ),
    "a command with other settings": (
        claim(lambda c: c.update(command=c["command"].replace(" --quick", ""))),
        r"report\.json: the setting epochs in the command",
    ),
    "another number watched": (claim(lambda c: c.update(watched="error")), r"report\.json: about\.watched is error"),
    "another fingerprint": (forge_fingerprint, r"bound\.safetensors: the fingerprint of what it bounds"),
    "a setting of the evaluation added": (
        lambda run: edit_object("evaluation/settings.json", lambda c: c.update(approved="yes"))(run, None),  # pyright: ignore[reportArgumentType]
        r"settings\.json: approved",
    ),
    "neighbours left out": (lose_neighbours, r"report\.json: gallery\.hardest\[0\]"),
    "a program in a drawing": (
        lambda run: draw_elsewhere(run, "<script>document.body.innerHTML = 'proven'</script>"),
        r"report\.html: The drawings of the page have parts that draw nothing: script",
    ),
    "constants of the training invented": (
        edit_history(lambda line: line.update(constant=0.01)),
        r"journal\.jsonl: the constant at step 1 is 0\.01",
    ),
    "losses left out": (edit_history(lambda line: line.pop("loss")), r"journal\.jsonl: the entry of step 1 has None"),
    "times left out": (edit_history(lambda line: line.pop("seconds")), r"journal\.jsonl: the entry of step 1 has None"),
    "a tensor left out": (
        edit_checkpoint(lambda s: s["model"].pop(next(iter(s["model"])))),
        r"checkpoint\.safetensors has other tensors than the model",
    ),
    "settings left out": (edit_checkpoint(lambda s: s.pop("fields")), r"checkpoint\.safetensors has no fields"),
    "steps as words": (edit_checkpoint(lambda s: s.update(steps="42")), r"checkpoint\.safetensors has no steps"),
}


@pytest.mark.train
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_forgery_that_everything_follows_is_named(
    name: str, honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge, sentence = FOLLOWED[name]
    run = tmp_path / "run"
    shutil.copytree(honest.plain, run)
    forge(run)
    capsys.readouterr()
    assert quietly(["audit", str(run)]) == Code.AUDIT_FAILED
    said = capsys.readouterr().err
    assert [line for line in said.splitlines() if re.search(sentence, line)], said


@pytest.mark.train
def test_a_run_without_an_attack_holds(honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(["audit", str(honest.plain)]) == Code.OK
    assert "holds. Of 24 samples," in capsys.readouterr().out


@pytest.mark.train
def test_drawings_of_another_version_are_not_compared(
    honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(honest.plain, run)
    draw_elsewhere(run, '<path d="M 0 0 L 9 9"/>')
    assert quietly(["audit", str(run)]) == Code.AUDIT_PARTIAL
    assert "report.html were not compared, because another version" in " ".join(capsys.readouterr().out.split())


@pytest.mark.train
def test_a_spot_check_is_no_audit(honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(["audit", str(honest.run), "--only", "5", "--json", str(tmp_path / "x.json")]) == Code.AUDIT_PARTIAL
    said = capsys.readouterr()
    assert "not checked: The attack was not repeated." in said.out
    assert "This was a spot check: no mismatch was found, and not everything was looked at." in said.err
    assert not json.loads((tmp_path / "x.json").read_text())["holds"]


@pytest.mark.train
def test_training_again_gives_the_same_weights(honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(["audit", str(honest.run), "--retrain"]) == Code.OK
    assert "the training was done again and gives them bit for bit" in capsys.readouterr().out


@pytest.mark.train
def test_training_again_finds_a_history_that_never_was(
    honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Weights, checkpoint and journal agree with each other, and no training gives them.
    run = tmp_path / "run"
    shutil.copytree(honest.run, run)
    lines = read_lines(run / "journal.jsonl")
    lines[-1]["loss"] = 0.01
    write_lines(run / "journal.jsonl", lines)
    state = checkpoint.load(run / "checkpoint.safetensors")
    checkpoint.save(run / "checkpoint.safetensors", {**state, "journal": Journal(run / "journal.jsonl").digest()})
    edit_report(lambda c: c["training"][-1].update(loss=0.01))(run, honest)
    assert quietly(["report", str(run)]) == Code.OK
    assert quietly(["audit", str(run)]) == Code.OK
    capsys.readouterr()
    assert quietly(["audit", str(run), "--retrain"]) == Code.AUDIT_FAILED
    assert "journal.jsonl: the loss of step 42 is 0.01 there" in capsys.readouterr().err


@pytest.mark.train
def test_shares_of_another_run_are_named(honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(["audit", str(honest.run), "--shares", f"{honest.other}.json"]) == Code.AUDIT_FAILED
    assert "seed4.json: " in capsys.readouterr().err


@pytest.mark.train
def test_a_recipe_that_lies_elsewhere_is_named(
    honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(honest.run, run)
    edit_object("run.json", lambda c: c.update(command=c["command"].replace("tiny.py", "gone.py")))(run, honest)
    assert quietly(["audit", str(run)]) == Code.AUDIT_FAILED
    assert "gone.py is not here; name its file with --model" in capsys.readouterr().err


# Runs of models that were given as they are.


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(MODEL)
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 1, 4, 4)).astype(np.float32)
    np.savez("table.npz", x=x, y=random.integers(0, 3, 40))
    words = ["attack", "nets.py:net", "--data", "table.npz", "--eps", "0.01,0.1", "--steps", "3", "--out", "run"]
    assert quietly(words) == Code.OK
    return tmp_path / "run"


def change_data(name: str, change: Callable[[Any], None]) -> None:
    with np.load("table.npz") as found:
        arrays = {key: found[key].copy() for key in found.files}
    change(arrays[name])
    np.savez("table.npz", **arrays)


@pytest.mark.train
def test_a_model_that_was_given_holds(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(["audit", str(given)]) == Code.OK
    assert "run holds. Of 40 samples," in capsys.readouterr().out
    # An audit that was interrupted goes on from a folder of its own.
    assert quietly(["audit", str(given), "--out", "audit"]) == Code.OK
    assert len(read_lines(Path("audit", "evaluation", "samples-0000.jsonl"))) == 40
    assert quietly(["audit", str(given), "--out", "audit"]) == Code.OK


@pytest.mark.train
def test_other_data_are_named(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_data("x", lambda x: x.__setitem__((7, 0, 0, 0), x[7, 0, 0, 0] + 1e-4))
    capsys.readouterr()
    assert quietly(["audit", str(given)]) == Code.AUDIT_FAILED
    said = capsys.readouterr().err
    assert "run.json: the setting SHA-256 of the test inputs" in said
    assert "evaluation: the hash of the input of sample 7" in said
    assert "report.json: about.prints.inputs" in said


@pytest.mark.train
def test_another_label_is_named(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_data("y", lambda y: y.__setitem__(3, (y[3] + 1) % 3))
    capsys.readouterr()
    assert quietly(["audit", str(given)]) == Code.AUDIT_FAILED
    assert "evaluation: the label of sample 3" in capsys.readouterr().err


@pytest.mark.train
def test_other_weights_than_the_model_makes_are_named(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_weights(flip_a_bit)(given, Honest(given, given, given, given, given))
    capsys.readouterr()
    assert quietly(["audit", str(given)]) == Code.AUDIT_FAILED
    assert "model.safetensors has other weights than nets.py:net makes" in capsys.readouterr().err


def test_a_certificate_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(MODEL)
    assert quietly(["bound", "nets.py:net", "--shape", "1,4,4", "--json", "paper.json"]) == Code.OK
    assert quietly(["audit", "paper.json"]) == Code.USAGE
    assert "give the model of paper.json with --model" in capsys.readouterr().err
    assert quietly(["audit", "paper.json", "--model", "nets.py:net"]) == Code.OK
    assert "certificate: " in capsys.readouterr().out
    assert quietly(["audit", "paper.json", "--model", "nets.py:net", "--seed", "1"]) == Code.AUDIT_FAILED
    assert "paper.json: " in capsys.readouterr().err


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(tmp_path / "nothing")]) == Code.USAGE
    assert main(["audit", str(tmp_path)]) == Code.USAGE
    assert "has no run.json" in capsys.readouterr().err
    write_object(tmp_path / "run.json", {"recipe": "", "source": "", "fields": {}, "command": "rm -rf ."})
    assert main(["audit", str(tmp_path)]) == Code.AUDIT_FAILED
    assert "run.json: 'rm -rf .' is no command that makes a run" in capsys.readouterr().err
