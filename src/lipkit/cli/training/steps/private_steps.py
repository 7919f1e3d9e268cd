"""Private steps of a run: on the disk before they are made, and never made twice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from lipkit.cli.training.private_recipe import PrivateRecipe
from lipkit.cli.training.processes import Team
from lipkit.cli.training.recipe import Precision, Recipe
from lipkit.cli.training.steps._base import Steps
from lipkit.data import Examples
from lipkit.errors import RecordError, UnsupportedError
from lipkit.privacy import Clip, Quantile, Training
from lipkit.privacy.ledger import MOST_RESERVED

# The file in the folder of a run that counts its steps.
LEDGER = "privacy.ledger"
# Entries of the journal: each asks the accountant. And the part of all steps that a kill may take at most.
_ENTRIES, _PART = 20, 100


def check_private(
    recipe: PrivateRecipe, optimizers: Sequence[torch.optim.Optimizer], team: Team, profile: bool
) -> None:
    """Refuse what would release more than the plan says, or what nobody can bound."""
    kind = type(recipe)
    wrong = {
        "epochs are counted in steps; give --steps and leave --epochs=1": recipe.epochs != 1,
        "recorded steps replay their noise; give --graph=false": recipe.graph,
        "compiled sums are rounded otherwise than the limits allow for; give --compile=false": recipe.compile,
        "bfloat16 rounds the sum of a batch by more than one record's gradient; give --precision=float32": (
            recipe.precision is not Precision.FLOAT32
        ),
        "the gradient of a batch is not clipped but noised; give --clip=0, and clip records by output_clip": (
            bool(recipe.clip)
        ),
        f"each of {team.size} processes would draw noise of its own; train in one": team.size > 1,
        "a profile reads gradients and samples, which would be further releases; train without --profile": profile,
        "targets of its own would be computed from private records; leave them out": (
            kind.targets is not Recipe.targets
        ),
        "augmented batches have no rule; change records one by one, by views or inputs": kind.augmented
        is not Recipe.augmented,
        f"one optimizer moves all parameters, got {len(optimizers)}; give one with groups": len(optimizers) != 1,
    }
    for why, found in wrong.items():
        if found:
            raise UnsupportedError(f"{kind.__name__} is private: {why}.")


def steps_between_entries(steps: int) -> int:
    """How many of so many private steps lie between two entries of the journal at most."""
    return max(1, steps // _ENTRIES)


@final
class PrivateSteps(Steps):
    """Steps of `privacy.Training`, with the ledger of the run's folder.

    Nothing that is computed from private records is kept but the weights: no loss, no labels, no state of a generator.
    A run that was killed goes on from the weights of its checkpoint with the count of the ledger, so it makes at most
    the planned number of steps, and a ledger older than the checkpoint is refused.
    """

    def __init__(
        self, recipe: PrivateRecipe, records: Examples, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path
    ) -> None:
        self._recipe, self._records, self._model, self._optimizer = recipe, records, model, optimizer
        self._path, self._plan = folder / LEDGER, recipe.plan()
        self._training: Training | None = None

    @property
    def total(self) -> int:
        return self._plan.steps

    @property
    def per_epoch(self) -> int:
        return steps_between_entries(self._plan.steps)

    @property
    def logs_by_clock(self) -> bool:
        return False

    def begin(self) -> int:
        made = self._open(0, self._recipe.output_clip())
        if made == self.total:
            self.close()
            raise RecordError(
                f"{self._path} says that all {self.total} planned steps were made, and there is no checkpoint. They "
                "are spent: another training needs another folder, and its epsilon adds to this one's."
            )
        return made

    def resume(self, state: Mapping[str, Any]) -> int:
        clip, limit = self._recipe.output_clip(), state["clip"]
        # The limit of a quantile follows from noised counts, so it is public as the weights are.
        clip = replace(clip, value=limit) if isinstance(clip, Quantile) and limit is not None else clip
        return self._open(state["step"], clip)

    def state(self) -> dict[str, Any]:
        clip = self._opened.clip
        return {"clip": None if clip is None else clip.limit}

    def make(self, step: int, progress: float) -> None:
        del step, progress
        self._opened.step()

    def entry(self) -> dict[str, Any]:
        return {"epsilon": self._opened.spent().epsilon}

    def remark(self) -> str:
        return f"of epsilon {self._plan.epsilon:g}"

    def require_sound(self) -> None:
        """The weights are checked by the next step, and nothing else may be looked at."""

    def close(self) -> None:
        if self._training is not None:
            self._training.close()

    @property
    def _opened(self) -> Training:
        assert self._training is not None, "the loop begins or resumes first"
        return self._training

    def _open(self, at_least: int, clip: Clip | None) -> int:
        recipe, device = self._recipe, next(self._model.parameters()).device
        self._training = Training(
            self._model, recipe.record_loss().to(device), self._optimizer,
            (self._records.inputs, self._records.labels), self._plan, recipe.inputs(), ledger=self._path, clip=clip,
            allocation=recipe.allocation(), after=lambda: recipe.after(self._model), views=recipe.views(),
            at_least=at_least,
            reserve=max(1, min(MOST_RESERVED, self._plan.steps // _PART)),
        )  # fmt: skip
        return self._training.spent().steps
