"""The one training loop: resumable to the bit, on one process or many."""

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit._seeds import derive_seed
from lipkit.cli.training import checkpoint
from lipkit.cli.training.average import Average
from lipkit.cli.training.delayed_checks import read_later
from lipkit.cli.training.diagnosis import first_not_finite
from lipkit.cli.training.graph import RecordedStep
from lipkit.cli.training.interrupts import interrupts
from lipkit.cli.training.journal import Journal
from lipkit.cli.training.processes import Team
from lipkit.cli.training.rates import Rates
from lipkit.cli.training.recipe import Recipe, Sets, plain_fields
from lipkit.data import Examples
from lipkit.errors import ArgumentError, InterruptedRun, NonFiniteError
from lipkit.losses import Progress
from lipkit.optim import ASAM, SAM, WeightNoise

# Seconds between checkpoints, and between entries of the journal at most.
_SAVE, _LOG = 60.0, 1.0
# Writing checkpoints may take one part in this many of a run.
_SHARE = 20
# A training set up to this many bytes is held on the device: copying each batch there would take longer than a step.
_RESIDENT = 2**32
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
    report: Callable[[int, int, float], None] | None = None,
    watch: _Watch | None = None,
    on_first_step: Callable[[], None] = lambda: None,
) -> Trained:
    """Train by the recipe, from the last checkpoint in `folder` if there is one.

    Batches, augmentation and initial weights are drawn from the seed; a checkpoint holds parameters, optimizers,
    averages and the state of the generators. So a run that was killed ends like one that was not: to the bit on CPU
    with the same number of processes and threads. The first interrupt (Ctrl-C, SIGTERM) ends the step, saves and raises
    `InterruptedRun`; a loss that is not finite stops with the step and the layer.

    Args:
        report: Called with the steps done, the steps in all, and the loss.
        watch: Called with every entry of the journal, in the leading process.
        on_first_step: Called once, when a step has shown that data, model and settings fit together; before that
            nothing but an empty journal is written.
    """
    run = _Run(recipe, folder, team, watch)
    with interrupts() as stopped:
        run.resume()
        run.train_to_end(stopped, report, on_first_step)
    return run.finish()


@final
class _Run:
    def __init__(self, recipe: Recipe, folder: Path, team: Team, watch: _Watch | None) -> None:
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
        if len(self.sets.train) < team.size:
            raise ArgumentError(
                f"{len(self.sets.train)} training examples do not suffice for {team.size} processes; start fewer."
            )
        if recipe.batch % team.size:
            raise ArgumentError(
                f"A batch of {recipe.batch} does not divide among {team.size} processes; set --batch to a multiple."
            )
        self._steps = max(1, len(self.sets.train) // recipe.batch)
        self.step, self._seconds = 0, 0.0
        both = self.sets.train.inputs, self.sets.train.labels
        self._inputs, self._targets = (t.to(team.device) for t in both) if both[0].nbytes <= _RESIDENT else both
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)
        # Augmentation and dropout differ between processes; the order of the data does not.
        torch.manual_seed(recipe.seed + 1_000_003 * (team.rank + 1))

    @property
    def total(self) -> int:
        return self._steps * self.recipe.epochs

    def resume(self) -> None:
        if not self.team.broadcast(self._file.exists()):
            if self.team.leads:
                # An earlier run that saved no checkpoint may have left entries; they are written again.
                self._journal.rewind(0)
            begin = time.monotonic()
            examples = Examples(self._inputs, self._targets, self.sets.train.classes)
            self._targets = self.team.broadcast(self.recipe.targets(examples).cpu()).to(self._targets.device)
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
        self.model.load_state_dict(state["model"])
        for optimizer, found in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(found)
        self._targets = state["targets"].to(self._targets.device)
        self._average.restore(state["average"])
        checkpoint.restore_random_state(state["random"][self.team.rank])
        self.step, self._seconds = state["step"], state["seconds"]
        if self.team.leads:
            self._journal.rewind(self.step)

    def save(self) -> None:
        random = self.team.gather(checkpoint.random_state())
        if self.team.leads:
            state = {
                "fields": plain_fields(self.recipe),
                "step": self.step, "steps": self.total, "size": self.team.size, "seconds": self._seconds,
                "model": self.model.state_dict(), "average": self._average.state(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers], "random": random,
                "targets": self._targets, "journal": self._journal.digest(),
            }  # fmt: skip
            checkpoint.save(self._file, state)

    def train_to_end(
        self,
        stopped: Callable[[], bool],
        report: Callable[[int, int, float], None] | None,
        on_first_step: Callable[[], None],
    ) -> None:
        forward: nn.Module = self.team.distribute(self.model)
        if self.recipe.compile:
            forward = torch.compile(forward)  # pyright: ignore[reportAssignmentType]
        move = functools.partial(self._update, forward)
        recorded = RecordedStep(move, self.optimizers, self.team) if self.recipe.graph else None
        begin = saved = logged = time.monotonic()
        before, spent, first = self._seconds, 0.0, self.step
        while self.step < self.total:
            loss = self._train_step(recorded or move)
            if self.step == first + 1:
                on_first_step()
            now = time.monotonic()
            self._seconds = before + now - begin
            last = self.step == self.total
            # Clocks differ between processes, so one says what is due: all take part in what follows.
            log, due, cheap = self.team.broadcast(
                (now - logged > _LOG, now - saved > _SAVE, now - saved > _SHARE * spent)
            )
            if last or self.step == 1 or log or self.step % self._steps == 0:
                logged = now
                self._log(loss)
                if report is not None:
                    report(self.step, self.total, float(loss))
            stop = self.team.maximum(float(stopped())) > 0 if self.team.size > 1 else stopped()
            if last or stop or due or (self.step % self._steps == 0 and cheap):
                if recorded:
                    recorded.require_finite()
                self.save()
                saved = time.monotonic()
                spent = saved - now
            if stop and not last:
                raise InterruptedRun(
                    f"Interrupted after step {self.step} of {self.total}; run the same command again to continue."
                )

    def _train_step(self, move: Callable[[Tensor, Tensor, float], Tensor]) -> Tensor:
        progress = self.step / self.total
        self._rates.scale(self.recipe.rate(progress))
        loss = move(*self._batch(), progress)
        self.step += 1
        self._average.update(self.model, self.step)
        return loss.detach()

    def _update(self, forward: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """One step of all optimizers: what a CUDA graph records."""
        inputs = self.recipe.augmented(inputs)

        def evaluate() -> Tensor:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            return self._gradients(forward, inputs, labels, progress)

        loss = evaluate()
        for optimizer in self.optimizers:
            # Optimizers that look around evaluate by themselves.
            if isinstance(optimizer, SAM | ASAM | WeightNoise):
                optimizer.step(evaluate)  # pyright: ignore[reportArgumentType, reportCallIssue]
            else:
                optimizer.step()
        return loss

    def _gradients(self, forward: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        recipe = self.recipe
        with torch.autocast(self.team.device.type, recipe.precision.autocast, recipe.precision.autocast is not None):
            loss = recipe.loss(forward, inputs, labels, progress)
        if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
            raise ArgumentError(
                f"{type(recipe).__name__}.loss must give one number that depends on the parameters, got "
                f"{f'shape {tuple(loss.shape)}' if isinstance(loss, Tensor) else type(loss).__name__}."
            )
        if recipe.graph:
            # A recording cannot ask; `RecordedStep` looks at the loss of each replay.
            loss.backward()
        else:
            self._checked_backward(loss, inputs)
        if recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        return loss

    def _checked_backward(self, loss: Tensor, inputs: Tensor) -> None:
        answer = read_later(torch.isfinite(loss.detach()))
        if self.team.size > 1:
            # All stop together: one that leaves alone lets the others wait for its gradients.
            self._require_finite(answer(), loss, inputs)
        try:
            loss.backward()
        except RuntimeError:
            # Decompositions refuse what is not finite; the message below says more.
            if answer():
                raise
        if self.team.size == 1:
            # Before anything has moved, and without letting the device wait for the launch of the backward pass.
            self._require_finite(answer(), loss, inputs)

    def _require_finite(self, finite: bool, loss: Tensor, inputs: Tensor) -> None:
        if self.team.maximum(float(not finite)) == 0:
            return
        if finite:
            raise NonFiniteError(f"The loss of step {self.step + 1} is not finite in another process, which says why.")
        raise NonFiniteError(
            f"The loss of step {self.step + 1} is {float(loss.detach())}; the first thing that is not finite is "
            f"{first_not_finite(self.model, inputs)}. Lower the learning rate, or clip gradients with --clip=1."
        )

    def _batch(self) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(self.step, self._steps)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.recipe.seed, epoch))
            order = torch.randperm(len(self.sets.train), generator=generator)
            self._epoch, self._order = epoch, order.to(self._inputs.device)
        chosen = self._order[place * self.recipe.batch : (place + 1) * self.recipe.batch]
        # Equal shares, so that averaged gradients are those of the whole batch.
        chosen = chosen[: len(chosen) // self.team.size * self.team.size]
        mine = chosen[self.team.rank :: self.team.size]
        return self._inputs[mine].to(self.team.device), self._targets[mine].to(self.team.device)

    def _log(self, loss: Tensor) -> None:
        constant = self.recipe.constant(self.model)
        if self.team.leads:
            entry = {
                "step": self.step, "loss": float(loss),
                # JSON has no word for others; a network that overflows stops at its loss.
                "constant": constant if constant is not None and math.isfinite(constant) else None,
                "rate": self.recipe.rate((self.step - 1) / self.total), "seconds": round(self._seconds, 3),
            }  # fmt: skip
            self._journal.add(entry)
            if self._watch is not None:
                self._watch(entry)

    def finish(self) -> Trained:
        self._average.into(self.model)
        # Buffers of normalisation differ between processes; all go on with those of the first.
        self.model.load_state_dict(self.team.broadcast(self.model.state_dict()))
        self.recipe.settled(self.model)
        return Trained(self.model.eval(), self.sets, self._journal.read() if self.team.leads else [], self.team)
