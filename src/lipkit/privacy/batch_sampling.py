"""How batches are drawn from the records, and what that is billed as."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from lipkit.errors import ArgumentError
from lipkit.privacy.accounting._base import Releases


class Sampling(ABC):
    """How each step chooses its records. All numbers are those of the plan, none comes from the data."""

    @abstractmethod
    def releases(self, records: int, batch: int, sigma: float, steps: int) -> Releases:
        """What so many steps are billed as."""

    @property
    @abstractmethod
    def relation(self) -> str:
        """Which pairs of data sets the guarantee compares, in words."""

    @abstractmethod
    def describe(self, records: int, batch: int) -> str:
        """How batches are drawn, in words."""

    def check(self, records: int, batch: int) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse a batch size that this way of drawing cannot have."""

    def steps_after_restart(self, steps: int, records: int, batch: int) -> int:
        """How many steps count as made when a run goes on after a stop; more than were made if the stop wastes some."""
        return steps


_ADD_REMOVE = "adding or removing one record"


@final
@dataclass(frozen=True)
class Poisson(Sampling):
    """Each record is in a batch with probability batch/records, on its own; batches vary in size and may be empty."""

    @property
    def relation(self) -> str:
        return _ADD_REMOVE

    def describe(self, records: int, batch: int) -> str:
        return f"Poisson sampling at rate {batch / records:.6g}"

    def releases(self, records: int, batch: int, sigma: float, steps: int) -> Releases:
        return Releases(batch / records, sigma, steps)


@final
@dataclass(frozen=True)
class Whole(Sampling):
    """Every step reads every record: nothing is sampled, nothing can be sampled wrongly."""

    @property
    def relation(self) -> str:
        return _ADD_REMOVE

    def describe(self, records: int, batch: int) -> str:
        return "every record in every step"

    def check(self, records: int, batch: int) -> None:
        if batch != records:
            raise ArgumentError(f"Whole batches have all {records} records, got batch={batch}; give batch={records}.")

    def releases(self, records: int, batch: int, sigma: float, steps: int) -> Releases:
        return Releases(1.0, sigma, steps)


@final
@dataclass(frozen=True)
class Shuffled(Sampling):
    """Each epoch cuts a new random order of the records into batches; what does not fill a batch is left out.

    A record is in at most one batch of an epoch, so E epochs are billed as E releases at rate 1, without amplification
    by sampling: what Poisson batches would cost is below what shuffled ones are known to cost (Chua et al. 2024). A
    restart begins a new epoch, because the order is stored nowhere, and the rest of the old one counts as spent.
    """

    @property
    def relation(self) -> str:
        return "replacing one record by a null record"

    def describe(self, records: int, batch: int) -> str:
        return f"shuffled epochs of {self.steps_per_epoch(records, batch)} batches, billed without amplification"

    def steps_per_epoch(self, records: int, batch: int) -> int:
        """The number of full batches."""
        return records // batch

    def releases(self, records: int, batch: int, sigma: float, steps: int) -> Releases:
        return Releases(1.0, sigma, math.ceil(steps / self.steps_per_epoch(records, batch)))

    def steps_after_restart(self, steps: int, records: int, batch: int) -> int:
        epoch = self.steps_per_epoch(records, batch)
        return -(-steps // epoch) * epoch
