"""What the training loop asks of the steps that it makes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Steps(ABC):
    """Moves the weights step by step, and says what of that a run may write down."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Steps of the whole training."""

    @property
    @abstractmethod
    def per_epoch(self) -> int:
        """After each so many steps there is an entry in the journal, and a checkpoint if it is cheap."""

    @property
    @abstractmethod
    def logs_by_clock(self) -> bool:
        """Whether the journal has further entries between these, by the clock."""

    def stated_time(self, seconds: float) -> float:
        """What a run writes down of the seconds that it took so far."""
        return seconds

    @abstractmethod
    def begin(self) -> int:
        """Get ready for a run without checkpoint; how many steps count as made."""

    @abstractmethod
    def resume(self, state: Mapping[str, Any]) -> int:
        """Get ready to go on from a checkpoint, whose weights the model has already; how many steps count as made."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights and optimizers."""

    @abstractmethod
    def make(self, step: int, progress: float) -> None:
        """Make the step of this number, from 0, all learning rates being set."""

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """What the journal says of the last step beside its number, rate and time."""

    @abstractmethod
    def remark(self) -> str:
        """The same for whoever watches the run."""

    @abstractmethod
    def require_sound(self) -> None:
        """Refuse to save what a step that cannot be asked at once has spoilt."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files."""
