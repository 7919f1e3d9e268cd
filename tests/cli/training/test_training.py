"""Runs that survive: to the bit on one process, over several, with settings that are checked first."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit._checksums import to_sealed_json
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Precision, Recipe, Sets, checkpoint, single_module
from lipkit.cli.training.average import Average
from lipkit.cli.training.journal import Board, Journal
from lipkit.cli.training.loop import train
from lipkit.cli.training.overrides import make_recipe
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.errors import ArgumentError, InterruptedRun, NonFiniteError, RecordError
from lipkit.losses import Progress
from lipkit.optim import SAM
from support.programs.run import PROGRAMS, environment, run_program
from support.programs.training_program import Blobs, Slow
from support.repository import ROOT

PROGRAM = PROGRAMS / "training_program.py"
HERE = Team(torch.device("cpu"))


def weights(folder: Path) -> dict[str, Any]:
    state = checkpoint.load(folder / "checkpoint.safetensors")
    return {name: value for part in ("model", "average") for name, value in state[part].items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_learns_and_leaves_its_history(tmp_path: Path) -> None:
    found = train(Blobs(epochs=6), tmp_path, HERE)
    z = found.model(found.sets.test.inputs)
    # Three blobs at distance 4 with deviation 0.5: a linear classifier errs on about one in ten thousand.
    assert float((z.argmax(1) == found.sets.test.labels).double().mean()) > 0.97
    entries = Journal(tmp_path / "journal.jsonl").read()
    assert entries == found.journal
    assert entries[-1]["step"] == 6 * (240 // 16)
    assert entries[-1]["loss"] < entries[0]["loss"]


def test_an_interrupted_run_ends_like_one_that_was_not(tmp_path: Path) -> None:
    whole = train(Blobs(), tmp_path / "whole", HERE)
    # 45 steps: six interruptions, each after a step of its own.
    for stop in range(1, 7):
        with pytest.raises(InterruptedRun, match=f"after step {7 * stop} of 45"):
            train(Blobs(stop_every=7), tmp_path / "parts", HERE)
    parts = train(Blobs(stop_every=7), tmp_path / "parts", HERE)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True))
    steps = [entry["step"] for entry in parts.journal]
    assert steps == sorted(set(steps))


def killed(folder: Path, processes: int) -> None:
    """Start a run, and kill it without warning once it has a checkpoint."""
    command = [sys.executable, str(PROGRAM), str(folder), str(processes), "slowly"]
    with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (folder / "done").exists()


@pytest.mark.process
@pytest.mark.train
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, processes: int) -> None:
    killed(tmp_path / "killed", processes)
    if processes == 1:
        train(Blobs(), tmp_path / "whole", HERE)
    for folder in [tmp_path / "killed", *([tmp_path / "whole"] if processes > 1 else [])]:
        ran = run_program(PROGRAM, [str(folder), str(processes)], 300)
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert (folder / "done").exists()
    assert same(weights(tmp_path / "killed"), weights(tmp_path / "whole"))


@pytest.mark.process
@pytest.mark.train
def test_control_c_saves_first(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "1", "slowly"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "journal.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "run the same command again to continue" in said
    assert checkpoint.load(tmp_path / "checkpoint.safetensors")["step"] >= 1


def test_other_settings_do_not_continue_a_run(tmp_path: Path) -> None:
    train(Blobs(epochs=1), tmp_path, HERE)
    with pytest.raises(ArgumentError, match=r"other settings \(epochs\)"):
        train(Blobs(epochs=2), tmp_path, HERE)
    with pytest.raises(ArgumentError, match=r"other settings \(seed\)"):
        train(Blobs(epochs=1, seed=1), tmp_path, HERE)


def test_a_batch_is_shared_evenly_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="A batch of 7 does not divide among 2 processes"):
        train(Blobs(batch=7), tmp_path, Team(torch.device("cpu"), 0, 2))


def test_fewer_examples_than_processes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="240 training examples do not suffice for 256 processes; start fewer"):
        train(Blobs(batch=256), tmp_path, Team(torch.device("cpu"), 0, 256))


def test_sets_that_cannot_be_trained_or_tested_are_refused() -> None:
    some = Examples(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), ("a",))
    none, wide = some.at([]), Examples(torch.zeros(4, 3), some.labels, ("a",))
    with pytest.raises(ArgumentError, match="The training set is empty; give it at least one example"):
        Sets(none, some)
    with pytest.raises(ArgumentError, match="The test set is empty"):
        Sets(some, none)
    with pytest.raises(ArgumentError, match=r"The test inputs have shape \(3,\) and the training inputs \(2,\)"):
        Sets(some, wide)


def test_the_guide_lists_all_that_a_recipe_may_say() -> None:
    guide = (ROOT / "docs" / "guides" / "training.md").read_text()
    said = set(re.findall(r"^\| `(\w+)[(`]", guide, flags=re.MULTILINE))
    fields = set(Recipe.__dataclass_fields__)
    assert {name for name in vars(Recipe) if not name.startswith("_")} - fields <= said
    assert all(f"`{name}`" in guide for name in fields)


@dataclass(frozen=True)
class Sharp(Blobs):
    """An optimizer that evaluates the loss twice."""

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)]


def test_optimizers_that_look_around_are_given_a_closure(tmp_path: Path) -> None:
    found = train(Sharp(epochs=2), tmp_path, HERE)
    assert found.journal[-1]["loss"] < found.journal[0]["loss"]


def test_a_history_without_checkpoint_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"step": 1}\n{"st')
    found = train(Blobs(epochs=1), tmp_path, HERE)
    assert [entry["step"] for entry in found.journal][:1] == [1]
    assert len({entry["step"] for entry in found.journal}) == len(found.journal)


def test_averages_are_of_parameters_and_buffers_are_copied() -> None:
    layer = nn.BatchNorm1d(2)
    average = Average(layer, 0.9)
    with torch.no_grad():
        layer.weight.fill_(3.0)
        assert layer.running_mean is not None
        layer.running_mean.fill_(10.0)
    average.update(layer, 10**6)
    assert average.state()["weight"].tolist() == pytest.approx([1.2, 1.2])
    assert average.state()["running_mean"].tolist() == [10.0, 10.0]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    train(Blobs(epochs=1), tmp_path, HERE)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ArgumentError, match=r"checkpoint\.safetensors is no readable safetensors file"):
            train(Blobs(epochs=1), tmp_path, HERE)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(Blobs(epochs=1), tmp_path, HERE)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ArgumentError, match="No space left on device"):
        checkpoint.save(tmp_path / "checkpoint.safetensors", {"step": 1})
    monkeypatch.undo()
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_checkpoints_keep_trees(tmp_path: Path) -> None:
    tree = {"a": [1, 2.5, None, True, "x"], "b": {3: torch.arange(3), "t": (torch.zeros(0), math.inf)}, "c": {}}
    checkpoint.save(tmp_path / "c", tree)
    found = checkpoint.load(tmp_path / "c")
    assert found["a"] == tree["a"]
    assert torch.equal(found["b"][3], torch.arange(3))
    assert found["b"]["t"][1] == math.inf
    assert found["c"] == {}
    with pytest.raises(TypeError, match="got object at /x"):
        checkpoint.save(tmp_path / "c", {"x": object()})


@dataclass(frozen=True)
class Exploding(Blobs):
    """A rate that no unconstrained network survives."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=1e30)]


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


@dataclass(frozen=True)
class Rooted(Blobs):
    """A layer that gives NaN at once."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), Root())


def test_a_loss_that_is_not_finite_stops_with_step_and_layer(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"The loss of step \d+ is (nan|inf); .* (parameter|output of)"):
        train(Exploding(), tmp_path / "a", HERE)
    with pytest.raises(NonFiniteError, match=r"step 1 is nan; the first thing .* is the output of 1"):
        train(Rooted(), tmp_path / "b", HERE)


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx, gradients
        raise RuntimeError("The algorithm failed to converge.")


@dataclass(frozen=True)
class Decomposed(Rooted):
    """A layer whose derivative cannot be formed, as those of decompositions of what is not finite."""

    rooted: bool = True

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        return super().loss(model, Refusing.apply(inputs.requires_grad_()), labels, progress)

    def model(self) -> nn.Module:
        return super().model() if self.rooted else Blobs.model(self)


def test_a_derivative_that_fails_names_the_number_that_is_not_finite_or_itself(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"step 1 is nan; the first thing .* is the output of 1"):
        train(Decomposed(), tmp_path / "a", HERE)
    with pytest.raises(RuntimeError, match="failed to converge"):
        train(Decomposed(rooted=False), tmp_path / "b", HERE)


def test_nothing_has_moved_where_a_loss_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[bool] = []
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: moved.append(True))
    with pytest.raises(NonFiniteError):
        train(Rooted(), tmp_path / "a", HERE)
    assert not moved
    train(Blobs(epochs=1), tmp_path / "b", HERE)
    assert moved


def test_mixed_precision_and_averages(tmp_path: Path) -> None:
    found = train(Blobs(precision=Precision.BFLOAT16, ema=0.9, clip=1.0), tmp_path, HERE)
    state = checkpoint.load(tmp_path / "checkpoint.safetensors")
    assert not same(state["model"], state["average"])
    assert same(dict(found.model.state_dict()), state["average"])


def test_tied_weights_are_averaged_under_both_names() -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    nn.init.zeros_(first.weight)
    average = Average(model, 0.5)
    nn.init.ones_(first.weight)
    average.update(model, 1000)
    average.into(model)
    assert torch.equal(first.weight.detach(), torch.full((2, 2), 0.5))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_journal_is_json_also_where_the_constant_is_no_number(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Blobs, "constant", lambda *_: value)
    train(Blobs(epochs=1), tmp_path, HERE)

    def refused(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    for line in (tmp_path / "journal.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=refused)["constant"] is None


def test_tensorboard_is_told_everything_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "board")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            told.append((name, value, step))

        def flush(self) -> None: ...

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    found = train(Blobs(epochs=1), tmp_path / "run", HERE, watch=Board(tmp_path / "board"))
    assert [(name, value) for name, value, _ in told if name == "loss"] == [
        ("loss", entry["loss"]) for entry in found.journal
    ]
    # This recipe watches no constant.
    assert {entry["constant"] for entry in found.journal} == {None}
    assert "constant" not in {name for name, _, _ in told}
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ArgumentError, match=r"lipkit\[logging\]"):
        Board(tmp_path / "board")


def test_settings_from_words() -> None:
    words = ["--epochs=3", "--precision=bfloat16", "--ema=0.5", "--compile=true", "--stop-every=2"]
    recipe = make_recipe(Blobs, words)
    assert recipe == Blobs(epochs=3, precision=Precision.BFLOAT16, ema=0.5, compile=True, stop_every=2)
    assert make_recipe(Slow, ["--data=none"]).data is None
    assert make_recipe(Slow, ["--data=some/where"]).data == Path("some/where")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--epoch=3", "Blobs has no field epoch; did you mean epochs?"),
        ("--zzz=3", "Blobs has no field zzz; there are epochs, batch,"),
        ("--epochs=three", "epochs is a whole number, got 'three'"),
        ("--epochs=0", "epochs must be at least 1, got 0"),
        ("--ema=nan", "ema is a number, got 'nan'"),
        ("--ema=2", "ema is a decay in"),
        ("--precision=half", "precision is one of float32, bfloat16, got 'half'"),
        ("--compile=maybe", "compile is true or false, got 'maybe'"),
        ("epochs=3", "'epochs=3' is no setting; write --key=value"),
        ("--epochs", "'--epochs' is no setting"),
    ],
)
def test_bad_settings_are_refused_by_name(word: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said.replace("?", r"\?")):
        make_recipe(Blobs, [word])


@dataclass(frozen=True)
class Shaped(Blobs):
    """Fields of tuples."""

    channels: tuple[int, int] = (4, 8)
    named: tuple[str, float] = ("a", 0.5)
    widths: tuple[int, ...] = ()


def test_tuples_have_as_many_values_as_their_field_says() -> None:
    found = make_recipe(Shaped, ["--channels=1,2", "--named=b,0.25", "--widths=3,4,5"])
    assert (found.channels, found.named, found.widths) == ((1, 2), ("b", 0.25), (3, 4, 5))
    assert make_recipe(Shaped, ["--widths="]).widths == ()
    for word, count in (("1,2,3", 3), ("1", 1), ("", 0)):
        with pytest.raises(
            ArgumentError, match=f"channels has 2 values with commas between them, got {count} in '{word}'"
        ):
            make_recipe(Shaped, [f"--channels={word}"])
    with pytest.raises(ArgumentError, match="named is a number, got 'x'"):
        make_recipe(Shaped, ["--named=b,x"])
    with pytest.raises(ArgumentError, match="widths is a whole number, got ''"):
        make_recipe(Shaped, ["--widths=1,,2"])


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"seed must lie in [0, 2^63), got {seed}.")):
        make_recipe(Blobs, [f"--seed={seed}"])


def test_the_largest_seed_trains(tmp_path: Path) -> None:
    assert train(Blobs(epochs=1, seed=2**63 - 1), tmp_path, HERE).journal


def test_a_goal_checks_itself_before_the_training() -> None:
    with pytest.raises(ArgumentError, match="increasing order"):
        Goal((0.5, 0.1))
    with pytest.raises(ArgumentError, match="increasing order"):
        Goal(())
    with pytest.raises(ArgumentError, match="samples=0"):
        Goal((0.1,), samples=0)
    with pytest.raises(ArgumentError, match="use one norm for both"):
        Goal((0.1,), p=math.inf, attack=PGD(0.1))


def test_a_setting_twice() -> None:
    with pytest.raises(ArgumentError, match="given twice"):
        make_recipe(Blobs, ["--epochs=1", "--epochs=2"])


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for damaged in (to_sealed_json({"step": 1}) + b"\n{\n", b"\xff\n", b"[1]\n", to_sealed_json({"loss": 1}) + b"\n"):
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=r"line [12] (has no checksum|has no step)"):
            Journal(path).read()


def test_examples_check_themselves() -> None:
    with pytest.raises(ArgumentError, match=r"0\.\.1, got 0\.\.2"):
        Examples(torch.zeros(3, 2), torch.arange(3), ("a", "b"))


def test_a_recipe_that_needs_data_says_so() -> None:
    class Needy(Blobs):
        needs_data = True

    with pytest.raises(ArgumentError, match="Needy needs --data"):
        Needy()
    assert isinstance(Blobs(), Recipe)
    assert isinstance(Blobs().goal, Goal)
    assert isinstance(Blobs().sets(), Sets)


def test_processes_stop_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if another process of the team had found a loss that is not finite.
    monkeypatch.setattr(Team, "maximum", lambda _team, _number: 1.0)
    with pytest.raises(NonFiniteError, match=r"The loss of step 1 is not finite in another process, which says why"):
        train(Blobs(), tmp_path, HERE)


@pytest.mark.parametrize(("cost", "saves"), [(0.0, 3), (0.7, 3), (1.0, 2)])
def test_checkpoints_take_a_twentieth_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost: float, saves: int
) -> None:
    # A step takes a second and a checkpoint `cost`: epochs end after 15, 30 and 45 steps, and the second checkpoint
    # waits until twenty times the cost of the first have passed.
    clock = SimpleNamespace(now=0.0, calls=0)

    class Timed(Blobs):
        def augmented(self, inputs: torch.Tensor) -> torch.Tensor:
            clock.now += 1
            return inputs

    def save(_path: Path, _state: Any) -> None:
        clock.now += cost
        clock.calls += 1

    monkeypatch.setattr("lipkit.cli.training.loop.time.monotonic", lambda: clock.now)
    monkeypatch.setattr("lipkit.cli.training.loop.checkpoint.save", save)
    train(Timed(), tmp_path, HERE)
    assert clock.calls == saves


def test_the_one_module_of_a_type_is_found_through_wrappers() -> None:
    inner = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(nn.ReLU(), inner))
    assert single_module(model, nn.Linear) is inner
    with pytest.raises(ArgumentError, match="one Sequential, got 2"):
        single_module(model, nn.Sequential)
    with pytest.raises(ArgumentError, match="one Conv2d, got 0"):
        single_module(model, nn.Conv2d)
