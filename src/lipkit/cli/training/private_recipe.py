"""Recipes whose training is private: what a step may read of a record, and what is fixed before the first one."""

import enum
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor, nn

from lipkit.cli.training.recipe import Recipe
from lipkit.data import Examples
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.losses import Progress
from lipkit.privacy import (
    PLD,
    RDP,
    Accountant,
    Allocation,
    Clip,
    Gaussian,
    Inputs,
    Optimal,
    Plan,
    RandomRuns,
    Views,
    usual_delta,
)


class Accounting(enum.Enum):
    """Who proves epsilon, as a word of the command line."""

    PLD = "pld"
    RDP = "rdp"
    GAUSSIAN = "gaussian"

    @property
    def accountant(self) -> Accountant:
        """The accountant with its usual settings."""
        made: dict[Accounting, Callable[[], Accountant]] = {
            Accounting.PLD: PLD, Accounting.RDP: RDP, Accounting.GAUSSIAN: Gaussian
        }  # fmt: skip
        return made[self]()


class Tuning(enum.Enum):
    """How the settings of a private training were chosen; the value is what a report says."""

    PUBLIC = "chosen without the private records, beforehand or on public data: free of charge"
    PAID = "the best of several runs on the private records: the second epsilon counts all of them"
    NOT_COUNTED = "not counted: if settings were chosen by looking at private records, epsilon is larger than said"


@dataclass(frozen=True)
class PrivateRecipe(Recipe):
    """A training of which nobody can tell whether one record was part of it; see `privacy.Training`.

    It is trained by `steps` private steps instead of epochs. Its run keeps privacy.ledger, which knows of every step
    before it is made, and a journal without losses. Noise and batches come from the system's entropy: `seed` draws the
    initial weights, which are public. Refused are: `epochs` other than 1, `compile`, `graph`, `clip`, bfloat16, several
    processes, `--profile`, and recipes with `augmented` (use `views`) or `targets` of their own.

    Args:
        epochs: Always 1.
        epsilon: What all steps may cost.
        delta: The delta of the guarantee; by default the largest power of ten below 1/records.
        steps: How many steps there are at most.
        batch: Planned number of records in a step, the divisor of every sum; batches are drawn by Poisson sampling.
        accountant: Who proves epsilon; pld needs `pip install lipkit[privacy]`.
    """

    epochs: int = 1
    batch: int = 1024
    epsilon: float = 3.0
    delta: float | None = None
    steps: int = 300
    accountant: Accounting = Accounting.PLD

    def __post_init__(self) -> None:
        super().__post_init__()
        # Its numbers are checked when it is made.
        self.plan()
        if (self.tuning is Tuning.PAID) != (self.runs_tried is not None):
            raise ArgumentError(
                f"{type(self).__name__} says tuning={self.tuning.name} and runs_tried={self.runs_tried}; settings that "
                "are paid for name the runs that were tried, and no others do."
            )

    @property
    @abstractmethod
    def records(self) -> int:
        """The public number of records: known beforehand, and never compared with the table."""

    @abstractmethod
    def inputs(self) -> Inputs:
        """The ball that training records are moved onto, in public numbers."""

    @abstractmethod
    def record_loss(self) -> nn.Module:
        """The loss of single records, of outputs and labels."""

    @property
    @abstractmethod
    def tuning(self) -> Tuning:
        """How the settings were chosen; the report says so."""

    @property
    def runs_tried(self) -> RandomRuns | None:
        """With `Tuning.PAID`: the law by which runs were repeated, of which the best one's settings were kept."""
        return None

    def plan(self) -> Plan:
        """The public numbers of the training; by default Poisson batches, and the least noise that epsilon allows."""
        delta = usual_delta(self.records) if self.delta is None else self.delta
        return Plan(
            self.records, self.batch, self.steps, delta, epsilon=self.epsilon, accountant=self.accountant.accountant
        )

    def output_clip(self) -> Clip | None:
        """How gradients of the loss in the outputs are clipped, record by record; by default not at all."""
        return None

    def views(self) -> Views | None:
        """How each record is changed before it is used; it counts once all the same. By default it is not changed."""
        return None

    def canary_scores(self, model: nn.Module) -> tuple[Tensor, Tensor] | None:
        """Scores of planted records that were trained on, and of others that were not; by default there are none.

        For recipes that plant canaries among their records, each put in by its own fair coin, drawn by a generator of
        their own. Scores are meant to be higher inside; the report has the lower bound of epsilon that they prove.
        """
        del model
        return None

    def allocation(self) -> Allocation:
        """How the noise is shared among the tensors; by default with the least energy."""
        return Optimal()

    def after(self, model: nn.Module) -> None:
        """Called after each step, to project weights for example; it must not read the records."""
        del model

    def evaluated(self, test: Examples) -> Examples:
        """The test samples moved onto the ball as the records were; that stretches nothing, so radii hold."""
        return replace(test, inputs=self.inputs()(test.inputs))

    @final
    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Refused: the loss of a batch would be a release; `record_loss` is what is trained."""
        del model, inputs, labels, progress
        raise UnsupportedError(
            f"{type(self).__name__} is private, and the loss of a batch would be a release; use record_loss."
        )
