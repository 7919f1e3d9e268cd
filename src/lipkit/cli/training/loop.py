"""The one training loop: resumable to the bit, on one process or many."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from lipkit.cli.training import checkpoint
from lipkit.cli.training.average import Average
from lipkit.cli.training.interrupts import interrupts
from lipkit.cli.training.journal import Journal
from lipkit.cli.training.private_recipe import PrivateRecipe
from lipkit.cli.training.processes import Team
from lipkit.cli.training.profile import (
    PROFILE,
    ProfileSettings,
    TrainingProfile,
    check_profile,
    profiling,
    require_same_profile,
)
from lipkit.cli.training.rates import Rates
from lipkit.cli.training.recipe import Recipe, Sets, plain_fields
from lipkit.cli.training.steps._base import Steps
from lipkit.cli.training.steps.gradient_steps import GradientSteps
from lipkit.cli.training.steps.private_steps import PrivateSteps, check_private
from lipkit.errors import ArgumentError, InterruptedRun

# Seconds between checkpoints, and between entries of the journal at most.
_SAVE, _LOG = 60.0, 1.0
# Writing checkpoints may take one part in this many of a run.
_SHARE = 20
_Watch = Callable[[Mapping[str, Any]], None]


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """A model at the end of its run, with averaged weights where the recipe asks for them."""

    model: nn.Module
    sets: Sets
    journal: list[dict[str, Any]]
    team: Team


def train(
    recipe: Recipe,
    folder: Path,
    team: Team,
    report: Callable[[int, int, str], None] | None = None,
    watch: _Watch | None = None,
    on_first_step: Callable[[], None] = lambda: None,
    profile: ProfileSettings | None = None,
) -> Trained:
    """Train by the recipe, from the last checkpoint in `folder` if there is one.

    Batches, augmentation and initial weights are drawn from the seed; a checkpoint holds parameters, optimizers,
    averages and the state of the generators. So a run that was killed ends like one that was not: to the bit on CPU
    with the same number of processes and threads. The first interrupt (Ctrl-C, SIGTERM) ends the step, saves and raises
    `InterruptedRun`; a loss that is not finite stops with the step and the layer.

    A `PrivateRecipe` is trained by `privacy.Training`: noise and batches come from the system's entropy, every step is
    in `folder`/privacy.ledger before it is made, and steps that a kill took are lost, not made again.

    Args:
        report: Called with the steps done, the steps in all, and the loss (or what privacy has cost) in words.
        watch: Called with every entry of the journal, in the leading process.
        on_first_step: Called once, when a step has shown that data, model and settings fit together; before that
            nothing but an empty journal is written.
        profile: Asks for a profile, which is written beside the journal; None for none. The weights are the same to
            the bit with and without it.
    """
    run = _Run(recipe, folder, team, watch, profile)
    try:
        with interrupts() as stopped:
            run.resume()
            with profiling(run.profile):
                run.train_to_end(stopped, report, on_first_step)
    finally:
        run.close()
    return run.finish()


@final
class _Run:
    def __init__(
        self, recipe: Recipe, folder: Path, team: Team, watch: _Watch | None, asked: ProfileSettings | None
    ) -> None:
        self.recipe, self.team, self._watch = recipe, team, watch
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"{folder} cannot be made a folder for the run ({error.strerror}).") from error
        self._file, self._journal = folder / "checkpoint.safetensors", Journal(folder / "journal.jsonl")
        torch.manual_seed(recipe.seed)
        self.sets = recipe.sets()
        self.model = recipe.model().to(team.device).train()
        self.optimizers = list(recipe.optimizers(self.model))
        if not self.optimizers:
            raise ArgumentError(f"{type(recipe).__name__}.optimizers gave none; give at least one.")
        self._rates = Rates(self.optimizers)
        self._average = Average(self.model, recipe.ema)
        self.step, self._seconds = 0, 0.0
        self._asked, self.profile = asked, None
        self._steps: Steps
        if isinstance(recipe, PrivateRecipe):
            check_private(recipe, self.optimizers, team, asked is not None)
            self._steps = PrivateSteps(recipe, self.sets.train, self.model, self.optimizers[0], folder)
        else:
            check_profile(asked, recipe, self.optimizers)
            self._steps = steps = GradientSteps(recipe, self.sets, self.model, self.optimizers, team)
            if asked is not None:
                self.profile = TrainingProfile(
                    folder / PROFILE, asked, recipe, self.model, self.optimizers[0], steps.example, watch, team.leads
                )
        # Augmentation and dropout differ between processes; the order of the data does not.
        torch.manual_seed(recipe.seed + 1_000_003 * (team.rank + 1))

    @property
    def total(self) -> int:
        return self._steps.total

    def resume(self) -> None:
        if not self.team.broadcast(self._file.exists()):
            if self.team.leads:
                # An earlier run that saved no checkpoint may have left entries; they are written again.
                self._journal.rewind(0)
            begin = time.monotonic()
            self.step = self._steps.begin()
            self._seconds = time.monotonic() - begin
            return
        state = checkpoint.load(self._file)
        changed = [name for name, value in plain_fields(self.recipe).items() if state["fields"].get(name) != value]
        if changed:
            raise ArgumentError(
                f"{self._file} is of a run with other settings ({', '.join(changed)}); continue that one, or give "
                "another folder."
            )
        if state["steps"] != self.total or state["size"] != self.team.size:
            raise ArgumentError(
                f"{self._file} is of a run of {state['steps']} steps on {state['size']} processes, this one has "
                f"{self.total} on {self.team.size}; continue with the same settings, or give another folder."
            )
        profiled = state.get("profile")
        require_same_profile(profiled, self._asked, self._file)
        self.model.load_state_dict(state["model"])
        for optimizer, found in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(found)
        self._average.restore(state["average"])
        self.step, self._seconds = self._steps.resume(state), state["seconds"]
        if self.team.leads:
            self._journal.rewind(state["step"])
        if state["step"] < self.step == self.total:
            # The last steps were made and are lost, so these weights are the last.
            self._log()
            self.save()
        if self.profile is not None and profiled is not None:
            self.profile.resume(profiled)

    def save(self) -> None:
        kept = self._steps.state()
        if self.team.leads:
            state = {
                "fields": plain_fields(self.recipe),
                "step": self.step, "steps": self.total, "size": self.team.size,
                "seconds": self._seconds if self._steps.logs_by_clock else 0.0,
                "model": self.model.state_dict(), "average": self._average.state(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "journal": self._journal.digest(), "profile": None if self.profile is None else self.profile.state(),
                **kept,
            }  # fmt: skip
            checkpoint.save(self._file, state)
            if self.profile is not None:
                self.profile.write()

    def train_to_end(
        self,
        stopped: Callable[[], bool],
        report: Callable[[int, int, str], None] | None,
        on_first_step: Callable[[], None],
    ) -> None:
        begin = saved = logged = time.monotonic()
        before, spent, first = self._seconds, 0.0, self.step
        while self.step < self.total:
            self._train_step()
            if self.step == first + 1:
                on_first_step()
            now = time.monotonic()
            self._seconds = before + now - begin
            last, whole = self.step == self.total, self.step % self._steps.per_epoch == 0
            # Clocks differ between processes, so one says what is due: all take part in what follows.
            log, due, cheap = self.team.broadcast(
                (now - logged > _LOG, now - saved > _SAVE, now - saved > _SHARE * spent)
            )
            if last or self.step == 1 or log or whole:
                logged = now
                if last or self.step == 1 or whole or self._steps.logs_by_clock:
                    self._log()
                if report is not None:
                    report(self.step, self.total, self._steps.remark())
            stop = self.team.maximum(float(stopped())) > 0 if self.team.size > 1 else stopped()
            if last or stop or due or (whole and cheap):
                self._steps.require_sound()
                self.save()
                saved = time.monotonic()
                spent = saved - now
            if stop and not last:
                raise InterruptedRun(
                    f"Interrupted after step {self.step} of {self.total}; run the same command again to continue."
                )

    def _train_step(self) -> None:
        progress = self.step / self.total
        self._rates.scale(self.recipe.rate(progress))
        self._steps.make(self.step, progress)
        self.step += 1
        if self.profile is not None:
            self.profile.after_step()
        self._average.update(self.model, self.step)

    def _log(self) -> None:
        known = self._steps.entry()
        if self.team.leads:
            rate = self.recipe.rate((self.step - 1) / self.total)
            # The time of a private step tells how many records it had.
            times = {"seconds": round(self._seconds, 3)} if self._steps.logs_by_clock else {}
            entry = {"step": self.step, **known, "rate": rate, **times}
            self._journal.add(entry)
            if self.profile is not None:
                self.profile.tell()
            if self._watch is not None:
                self._watch(entry)

    def close(self) -> None:
        self._steps.close()

    def finish(self) -> Trained:
        self._average.into(self.model)
        # Buffers of normalisation differ between processes; all go on with those of the first.
        self.model.load_state_dict(self.team.broadcast(self.model.state_dict()))
        self.recipe.settled(self.model)
        return Trained(self.model.eval(), self.sets, self._journal.read() if self.team.leads else [], self.team)
