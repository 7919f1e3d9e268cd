"""The lengths of the steps of an attack."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from lipkit.errors import ArgumentError


class Schedule(ABC):
    """The length of the first step, the momentum, and when to look back; abstract."""

    @abstractmethod
    def first(self, steps: int) -> float:
        """The first step as a multiple of the radius, where the user gave none."""

    @property
    @abstractmethod
    def momentum(self) -> float:
        """Share of the previous move that is kept."""

    @abstractmethod
    def window(self, steps: int) -> int | None:
        """After how many steps progress is judged; None for never."""

    @abstractmethod
    def least(self, window: int) -> float:
        """The number of better points in a window that is enough to go on as before."""


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """Every step has the same length, 2.5 radius/steps unless given: plain projected gradient.

    Reference: Madry et al. 2018.
    """

    def __str__(self) -> str:
        return "constant steps"

    def first(self, steps: int) -> float:
        """Two and a half radii in all."""
        return 2.5 / max(steps, 1)

    @property
    def momentum(self) -> float:
        """None."""
        return 0.0

    def window(self, steps: int) -> int | None:
        """Never."""
        return None

    def least(self, window: int) -> float:
        """0: it never looks back."""
        return 0.0


@final
@dataclass(frozen=True)
class Halving(Schedule):
    """Long steps first; a sample that stops improving goes back to its best point and halves its step.

    The first step is `start` radii. After every steps/`looks` steps (at least 2) a sample whose best value improved in
    fewer than `share` of them restarts from its best point with half the step. With momentum a, the move is
        z <- P(z + (1 - a) (P(z + step d) - z) + a (z - z_previous)).
    After k halvings the walk is within 2^-k of the radius of where it looks, so the last steps refine what the first
    found. Reference: the idea is Croce, Hein 2020 (APGD); windows of one length and these numbers are ours.

    Args:
        start: First step, in radii.
        keep: Momentum: share of the previous move that is kept, in [0, 1).
        looks: How often progress is judged in a run.
        share: Share of better steps in a window that is enough, in (0, 1].
    """

    start: float = 2.0
    keep: float = 0.25
    looks: int = 8
    share: float = 0.75

    def __post_init__(self) -> None:
        if not (self.start > 0 and 0 <= self.keep < 1 and self.looks >= 1 and 0 < self.share <= 1):
            raise ArgumentError(f"Halving needs start > 0, 0 <= keep < 1, looks >= 1 and 0 < share <= 1, got {self!r}.")

    def __str__(self) -> str:
        return "halving steps"

    def first(self, steps: int) -> float:
        """`start`."""
        return self.start

    @property
    def momentum(self) -> float:
        """`keep`."""
        return self.keep

    def window(self, steps: int) -> int | None:
        """An eighth of the run by default."""
        return max(2, steps // self.looks)

    def least(self, window: int) -> float:
        """`share` of the window."""
        return self.share * window
