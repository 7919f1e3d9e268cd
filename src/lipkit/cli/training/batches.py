"""The batches of a training: their order depends on the seed and the epoch alone."""

from typing import final

import torch
from torch import Tensor

from lipkit._seeds import derive_seed
from lipkit.cli.training.processes import Team
from lipkit.cli.training.recipe import Recipe
from lipkit.data import Examples
from lipkit.errors import ArgumentError

# A training set up to this many bytes is held on the device: copying each batch there would take longer than a step.
_RESIDENT = 2**32


@final
class Batches:
    """The training examples, in batches that are shared among the processes; `targets` is what the loss gets."""

    def __init__(self, examples: Examples, recipe: Recipe, team: Team) -> None:
        if len(examples) < team.size:
            raise ArgumentError(
                f"{len(examples)} training examples do not suffice for {team.size} processes; start fewer."
            )
        if recipe.batch % team.size:
            raise ArgumentError(
                f"A batch of {recipe.batch} does not divide among {team.size} processes; set --batch to a multiple."
            )
        self._batch, self._seed, self._team = recipe.batch, recipe.seed, team
        # Steps of one epoch.
        self.steps: int = max(1, len(examples) // recipe.batch)
        both = examples.inputs, examples.labels
        self._inputs, self._targets = (t.to(team.device) for t in both) if both[0].nbytes <= _RESIDENT else both
        self._classes = examples.classes
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    @property
    def examples(self) -> Examples:
        """All examples with their targets, where training reads them."""
        return Examples(self._inputs, self._targets, self._classes)

    @property
    def targets(self) -> Tensor:
        """What the loss gets for each example."""
        return self._targets

    @targets.setter
    def targets(self, targets: Tensor) -> None:
        self._targets = targets.to(self._targets.device)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the step, this process' share of them, on its device."""
        epoch, place = divmod(step, self.steps)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self._seed, epoch))
            order = torch.randperm(len(self._inputs), generator=generator)
            self._epoch, self._order = epoch, order.to(self._inputs.device)
        chosen = self._order[place * self._batch : (place + 1) * self._batch]
        # Equal shares, so that averaged gradients are those of the whole batch.
        chosen = chosen[: len(chosen) // self._team.size * self._team.size]
        mine = chosen[self._team.rank :: self._team.size]
        return self._inputs[mine].to(self._team.device), self._targets[mine].to(self._team.device)
