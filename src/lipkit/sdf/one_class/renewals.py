"""When complementary samples are walked anew, and with which weights."""

from abc import ABC
from dataclasses import dataclass
from typing import final

from lipkit.errors import ArgumentError


@dataclass(frozen=True)
class Renewal(ABC):
    """How long complementary samples, or the weights that they are walked with, are used; abstract."""

    updates: int

    def __post_init__(self) -> None:
        if isinstance(self.updates, bool) or not isinstance(self.updates, int) or self.updates < 1:
            raise ArgumentError(f"updates is a whole number of at least 1, got {self.updates}.")


@final
@dataclass(frozen=True)
class Alternating(Renewal):
    """New samples at every update, walked with weights that are held for `updates` of them.

    Guarantee: with exact minimisers in between, sets that are complementary stay so. Cost: one walk an update.
    Reference: Béthune 2024, algorithm 5 and property 7.
    """

    updates: int = 100


@final
@dataclass(frozen=True)
class Lazy(Renewal):
    """New samples every `updates` updates, walked with the weights of that moment.

    Guarantee: none; it may oscillate. Cost: one walk for `updates` updates. Reference: Béthune 2024, algorithm 7.
    """

    updates: int = 8
