"""Private training by the loop: nothing leaks into the folder, and no kill makes a step free."""

import json
import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit.cli.training import Precision, Tuning, checkpoint
from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.cli.training.profile import ProfileSettings
from lipkit.cli.training.steps.private_steps import LEDGER
from lipkit.data import Examples
from lipkit.errors import ArgumentError, InterruptedRun, LipkitError, RecordError, UnsupportedError
from lipkit.losses import CosineSchedule
from lipkit.optim import SAM
from lipkit.privacy import RDP, Clip, Ledger, Quantile, Repeatable, Training, Views
from support.programs.private_training import PrivateBlobs
from support.programs.run import PROGRAMS, run_program

HERE = Team(torch.device("cpu"))


def charged(folder: Path) -> int:
    return Ledger.read(folder / LEDGER, RDP()).steps


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_private_run_learns_within_its_plan(tmp_path: Path) -> None:
    found = train(PrivateBlobs(), tmp_path, HERE)
    z = found.model(found.sets.test.inputs)
    # Blobs at distance 7 with deviation 0.5: noise of epsilon 8 leaves a linear classifier far better than chance.
    assert float((z.argmax(1) == found.sets.test.labels).double().mean()) > 0.8
    spent = Ledger.read(tmp_path / LEDGER, RDP())
    assert spent.steps == 40
    assert 0 < spent.epsilon <= 8.0


def test_the_journal_has_three_numbers_no_loss_and_no_time(tmp_path: Path) -> None:
    found = train(PrivateBlobs(), tmp_path, HERE)
    assert {frozenset(entry) for entry in found.journal} == {frozenset(("step", "rate", "epsilon"))}
    plan = PrivateBlobs().plan()
    schedule = CosineSchedule(1.0, 0.0)
    assert found.journal[-1]["step"] == 40
    state = checkpoint.load(tmp_path / "checkpoint.safetensors")
    # Times of steps would tell the sizes of Poisson batches.
    assert state["seconds"] == 0.0
    for entry in found.journal:
        # Both are functions of the planned step alone.
        assert entry["epsilon"] == plan.epsilon_after(entry["step"])
        assert entry["rate"] == schedule((entry["step"] - 1) / 40)


def test_the_checkpoint_has_weights_and_nothing_of_the_records(tmp_path: Path) -> None:
    recipe = PrivateBlobs(ema=0.9)
    train(recipe, tmp_path, HERE)
    state = checkpoint.load(tmp_path / "checkpoint.safetensors")
    assert set(state) == {
        "fields", "step", "steps", "size", "seconds", "model", "average", "optimizers", "journal", "profile", "clip",
    }  # fmt: skip
    # Momentum is a sum of noised gradients; nothing is as long as the records are many, so no label is among them.
    sizes = [t.numel() for t in _tensors(state)]
    parameters = {p.numel() for p in recipe.model().parameters()}
    assert set(sizes) <= parameters | {1}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def test_the_seed_draws_no_noise_and_no_batch(tmp_path: Path) -> None:
    # The first weights are those of the seed; one step later two runs differ, by noise in every parameter.
    runs = [flat(train(PrivateBlobs(steps=1), tmp_path / name, HERE).model) for name in ("a", "b")]
    assert not torch.equal(*runs)
    # No step moves torch's generator: after the run it is where the loop put it.
    train(PrivateBlobs(steps=1), tmp_path / "d", HERE)
    once = torch.get_rng_state()
    train(PrivateBlobs(steps=9), tmp_path / "e", HERE)
    assert torch.equal(once, torch.get_rng_state())


def test_two_runs_with_repeatable_entropy_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The other side of the test above: with the noise fixed, all else is fixed by the recipe.
    def repeatable(*args: Any, **kwargs: Any) -> Training:
        return Training(*args, **kwargs, entropy=Repeatable(0))

    monkeypatch.setattr("lipkit.cli.training.steps.private_steps.Training", repeatable)
    runs = [flat(train(PrivateBlobs(steps=5), tmp_path / name, HERE).model) for name in ("a", "b")]
    assert torch.equal(*runs)


@dataclass(frozen=True)
class WithTargets(PrivateBlobs):
    def targets(self, examples: Examples) -> Tensor:
        return examples.labels


@dataclass(frozen=True)
class WithAugmentation(PrivateBlobs):
    def augmented(self, inputs: Tensor) -> Tensor:
        return inputs + 1


@dataclass(frozen=True)
class TwoOptimizers(PrivateBlobs):
    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]


@dataclass(frozen=True)
class LooksAround(PrivateBlobs):
    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (PrivateBlobs(epochs=2), "--epochs=1"),
        (PrivateBlobs(graph=True), "--graph=false"),
        (PrivateBlobs(compile=True), "--compile=false"),
        (PrivateBlobs(precision=Precision.BFLOAT16), "--precision=float32"),
        (PrivateBlobs(clip=1.0), "--clip=0"),
        (WithTargets(), "targets"),
        (WithAugmentation(), "augmented"),
        (TwoOptimizers(), "one optimizer"),
        (LooksAround(), "closure"),
    ],
)
def test_what_would_release_more_is_refused_before_the_first_step(
    recipe: PrivateBlobs, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        train(recipe, tmp_path, HERE)
    assert not (tmp_path / LEDGER).exists()


def test_several_processes_and_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="2 processes"):
        train(PrivateBlobs(), tmp_path, Team(torch.device("cpu"), 0, 2))
    with pytest.raises(UnsupportedError, match="--profile"):
        train(PrivateBlobs(), tmp_path, HERE, profile=ProfileSettings(4))


def test_the_loss_of_a_batch_is_not_there() -> None:
    recipe = PrivateBlobs()
    with pytest.raises(UnsupportedError, match="record_loss"):
        recipe.loss(nn.Identity(), torch.zeros(1, 2), torch.zeros(1), 0.0)


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"delta": 0.5}, {"steps": 0}, {"batch": 241}])
def test_a_plan_that_is_none_is_refused_with_the_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        PrivateBlobs(**wrong)


def test_an_interrupted_run_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    class Stopped(PrivateBlobs):
        def after(self, model: nn.Module) -> None:
            if charged(tmp_path) % 15 == 0:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRun, match="step 15 of 40"):
        train(Stopped(), tmp_path, HERE)
    assert charged(tmp_path) == 15
    with pytest.raises(InterruptedRun, match="step 30 of 40"):
        train(Stopped(), tmp_path, HERE)
    found = train(Stopped(), tmp_path, HERE)
    assert charged(tmp_path) == 40
    steps = [entry["step"] for entry in found.journal]
    assert steps == sorted(set(steps))
    # Twentieths, the first and the last: none is missing and none is there twice.
    assert steps == [1, *range(2, 41, 2)]


class _StopError(Exception):
    pass


def stop_after(folder: Path, step: int, recipe: PrivateBlobs | None = None) -> None:
    """Train until a step has been reported, then end without saving."""

    def report(done: int, _total: int, _said: str) -> None:
        if done >= step:
            raise _StopError

    with pytest.raises(_StopError):
        train(recipe or PrivateBlobs(), folder, HERE, report)


def test_an_old_checkpoint_takes_back_no_step(tmp_path: Path) -> None:
    stop_after(tmp_path, 10)
    file = tmp_path / "checkpoint.safetensors"
    shutil.copy(file, tmp_path / "old")
    old = checkpoint.load(file)
    stop_after(tmp_path, 30)
    before = charged(tmp_path)
    assert before == 30
    shutil.copy(tmp_path / "old", file)
    found = train(PrivateBlobs(), tmp_path, HERE)
    # It went on from the old weights with the new count: ten steps were left.
    assert charged(tmp_path) == 40
    assert [e["step"] for e in found.journal if e["step"] > old["step"]] == [*range(32, 41, 2)]


def test_an_old_checkpoint_of_a_run_that_is_over_makes_no_step(tmp_path: Path) -> None:
    stop_after(tmp_path, 10)
    file = tmp_path / "checkpoint.safetensors"
    shutil.copy(file, tmp_path / "old")
    train(PrivateBlobs(), tmp_path, HERE)
    shutil.copy(tmp_path / "old", file)
    old = checkpoint.load(file)
    found = train(PrivateBlobs(), tmp_path, HERE)
    state = checkpoint.load(file)
    assert charged(tmp_path) == 40
    assert all(torch.equal(old["model"][name], value) for name, value in state["model"].items())
    assert (state["step"], found.journal[-1]["step"]) == (40, 40)


def test_a_ledger_older_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    stop_after(tmp_path, 10)
    shutil.copy(tmp_path / LEDGER, tmp_path / "old")
    stop_after(tmp_path, 30)
    shutil.copy(tmp_path / "old", tmp_path / LEDGER)
    with pytest.raises(RecordError, match="older copy"):
        train(PrivateBlobs(), tmp_path, HERE)
    (tmp_path / LEDGER).unlink()
    with pytest.raises(LipkitError, match="cannot be opened"):
        train(PrivateBlobs(), tmp_path, HERE)


def test_steps_without_a_checkpoint_are_spent(tmp_path: Path) -> None:
    train(PrivateBlobs(), tmp_path, HERE)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(RecordError, match="are spent"):
        train(PrivateBlobs(), tmp_path, HERE)


def test_another_plan_does_not_continue_a_ledger(tmp_path: Path) -> None:
    stop_after(tmp_path, 10)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(RecordError, match="another plan"):
        train(PrivateBlobs(epsilon=9.0), tmp_path, HERE)


def test_the_limit_of_a_quantile_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Quantile(1.0, 20.0)

    class Clipped(PrivateBlobs):
        def output_clip(self) -> Clip:
            return first

    stop_after(tmp_path, 10, Clipped())
    limit = checkpoint.load(tmp_path / "checkpoint.safetensors")["clip"]
    assert limit != first.value
    given: list[Any] = []

    def watched(*args: Any, **kwargs: Any) -> Training:
        given.append(kwargs["clip"])
        return Training(*args, **kwargs)

    monkeypatch.setattr("lipkit.cli.training.steps.private_steps.Training", watched)
    train(Clipped(), tmp_path, HERE)
    assert given == [replace(first, value=limit)]


@pytest.mark.process
@pytest.mark.slow
def test_kills_at_random_moments_never_lower_the_count(tmp_path: Path) -> None:
    """The count is compared in the program after every kill."""
    found = run_program(PROGRAMS / "killed_training.py", [str(tmp_path)])
    assert found.returncode == 0, found.stderr[-4000:]
    assert int(found.stdout.splitlines()[-1]) >= 1
    state = checkpoint.load(tmp_path / "checkpoint.safetensors")
    assert state["step"] == charged(tmp_path) == 40
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_bytes().splitlines()]
    assert lines[-1]["step"] == 40


@dataclass(frozen=True)
class TurnedBlobs(PrivateBlobs):
    """Two views of each record, turned by a random angle about the center of the ball."""

    turn: float = 0.3

    def views(self) -> Views:
        def turned(x: Tensor) -> Tensor:
            angle = self.turn * torch.randn(())
            rows = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
            return x @ rows.T

        return Views(2, turned)


def test_views_of_a_recipe_reach_the_training_and_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Views | None] = []
    make = Training.__init__

    def noted(self: Training, *words: Any, **options: Any) -> None:
        given.append(options["views"])
        make(self, *words, **options)

    monkeypatch.setattr(Training, "__init__", noted)
    found = train(TurnedBlobs(), tmp_path, HERE)
    assert given[0] is not None
    assert given[0].count == 2
    z = found.model(found.sets.test.inputs)
    assert float((z.argmax(1) == found.sets.test.labels).double().mean()) > 0.8
    assert TurnedBlobs().plan().facts() == PrivateBlobs().plan().facts()


def test_tuning_that_is_paid_for_names_its_runs() -> None:
    @dataclass(frozen=True)
    class Paid(PrivateBlobs):
        @property
        def tuning(self) -> Tuning:
            return Tuning.PAID

    with pytest.raises(ArgumentError, match="name the runs that were tried"):
        Paid()
