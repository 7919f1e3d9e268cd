"""Steps by the gradient of a batch's loss: on one process or many, compiled or recorded."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.cli.training import checkpoint
from lipkit.cli.training.batches import Batches
from lipkit.cli.training.delayed_checks import read_later
from lipkit.cli.training.diagnosis import first_not_finite
from lipkit.cli.training.graph import RecordedStep
from lipkit.cli.training.processes import Team
from lipkit.cli.training.recipe import Recipe, Sets
from lipkit.cli.training.steps._base import Steps
from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.losses import Progress
from lipkit.optim import ASAM, SAM, WeightNoise


@final
class GradientSteps(Steps):
    """Batch, loss, gradient, optimizers. A loss that is not finite stops with the step and the layer."""

    def __init__(
        self, recipe: Recipe, sets: Sets, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], team: Team
    ) -> None:
        self._recipe, self._model, self._optimizers, self._team = recipe, model, optimizers, team
        self._batches = Batches(sets.train, recipe, team)
        self._step = 0
        self._loss: Tensor = torch.zeros(())
        self._move: functools.partial[Tensor] | RecordedStep | None = None

    @property
    def total(self) -> int:
        return self.per_epoch * self._recipe.epochs

    @property
    def per_epoch(self) -> int:
        return self._batches.steps

    @property
    def logs_by_clock(self) -> bool:
        return True

    @property
    def example(self) -> Tensor:
        """One input, where training reads it."""
        return self._batches.examples.inputs[:1].to(self._team.device)

    def begin(self) -> int:
        self._batches.targets = self._team.broadcast(self._recipe.targets(self._batches.examples).cpu())
        return 0

    def resume(self, state: Mapping[str, Any]) -> int:
        self._batches.targets = state["targets"]
        checkpoint.restore_random_state(state["random"][self._team.rank])
        return state["step"]

    def state(self) -> dict[str, Any]:
        return {"random": self._team.gather(checkpoint.random_state()), "targets": self._batches.targets}

    def make(self, step: int, progress: float) -> None:
        self._step = step
        if self._move is None:
            self._move = self._prepare()
        self._loss = self._move(*self._batches.at(step), progress).detach()

    def entry(self) -> dict[str, Any]:
        constant = self._recipe.constant(self._model)
        # JSON has no word for others; a network that overflows stops at its loss.
        known = constant if constant is not None and math.isfinite(constant) else None
        return {"loss": float(self._loss), "constant": known}

    def remark(self) -> str:
        return f"loss {float(self._loss):.4f}"

    def require_sound(self) -> None:
        if isinstance(self._move, RecordedStep):
            self._move.require_finite()

    def close(self) -> None:
        """Nothing is held."""

    def _prepare(self) -> functools.partial[Tensor] | RecordedStep:
        forward: nn.Module = self._team.distribute(self._model)
        if self._recipe.compile:
            forward = torch.compile(forward)  # pyright: ignore[reportAssignmentType]
        move = functools.partial(self._update, forward)
        return RecordedStep(move, self._optimizers, self._team) if self._recipe.graph else move

    def _update(self, forward: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """One step of all optimizers: what a CUDA graph records."""
        inputs = self._recipe.augmented(inputs)

        def evaluate() -> Tensor:
            for optimizer in self._optimizers:
                optimizer.zero_grad(set_to_none=True)
            return self._gradients(forward, inputs, labels, progress)

        loss = evaluate()
        for optimizer in self._optimizers:
            # Optimizers that look around evaluate by themselves.
            if isinstance(optimizer, SAM | ASAM | WeightNoise):
                optimizer.step(evaluate)  # pyright: ignore[reportArgumentType, reportCallIssue]
            else:
                optimizer.step()
        return loss

    def _gradients(self, forward: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        recipe = self._recipe
        with torch.autocast(self._team.device.type, recipe.precision.autocast, recipe.precision.autocast is not None):
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
            nn.utils.clip_grad_norm_(self._model.parameters(), recipe.clip)
        return loss

    def _checked_backward(self, loss: Tensor, inputs: Tensor) -> None:
        answer = read_later(torch.isfinite(loss.detach()))
        if self._team.size > 1:
            # All stop together: one that leaves alone lets the others wait for its gradients.
            self._require_finite(answer(), loss, inputs)
        try:
            loss.backward()
        except RuntimeError:
            # Decompositions refuse what is not finite; the message below says more.
            if answer():
                raise
        if self._team.size == 1:
            # Before anything has moved, and without letting the device wait for the launch of the backward pass.
            self._require_finite(answer(), loss, inputs)

    def _require_finite(self, finite: bool, loss: Tensor, inputs: Tensor) -> None:
        if self._team.maximum(float(not finite)) == 0:
            return
        if finite:
            raise NonFiniteError(f"The loss of step {self._step + 1} is not finite in another process, which says why.")
        raise NonFiniteError(
            f"The loss of step {self._step + 1} is {float(loss.detach())}; the first thing that is not finite is "
            f"{first_not_finite(self._model, inputs)}. Lower the learning rate, or clip gradients with --clip=1."
        )
