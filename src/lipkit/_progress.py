"""What a long call does at this moment, said to whoever asked to be told."""

import enum
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import final

from lipkit._deadline import seconds_left
from lipkit.errors import ArgumentError


@final
class Phase(enum.Enum):
    """The parts of a call that bounds a model; the value is how a part is said."""

    CAPTURE = "capturing the model"
    BOUND = "bounding"
    LOWER = "searching for a lower bound"


@final
@dataclass(frozen=True)
class Progress:
    """What begins now: the phase, the method if there is one, and how many seconds are left, perhaps infinitely many.

    `seconds_left` is what is left of the whole call for `CAPTURE` and `LOWER`, and of the part of it that is for the
    bound in `BOUND`. It may be negative.
    """

    phase: Phase
    rung: object | None
    seconds_left: float

    def __str__(self) -> str:
        method = "" if self.rung is None else f" by {self.rung}"
        left = "" if self.seconds_left == math.inf else f", {max(self.seconds_left, 0.0):.1f} s left"
        return f"{self.phase.value}{method}{left}"


Listener = Callable[[Progress], object]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def reporting(listener: Listener | None) -> Iterator[None]:
    """Within this block `listener` hears of every step; None leaves whoever listens already."""
    if listener is not None and not callable(listener):
        raise ArgumentError(f"`progress` is a function of one lipkit.Progress, such as print, got {listener!r}.")
    token = _listener.set(_listener.get() if listener is None else listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(phase: Phase, rung: object | None = None) -> None:
    """Say what begins now. An exception of the listener passes, so nothing may be half-done where this is called."""
    listener = _listener.get()
    if listener is not None:
        listener(Progress(phase, rung, seconds_left()))
