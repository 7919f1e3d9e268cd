"""When a call must end: set once at the outside, asked by everything inside that takes long."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

from lipkit.errors import OutOfTimeError

_end: ContextVar[float] = ContextVar("end", default=math.inf)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within this block the time is over after so many seconds, or sooner if a block around it says so."""
    token = _end.set(min(_end.get(), monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


@contextmanager
def no_time_limit() -> Iterator[None]:
    """Within this block no limit counts: for what is cheap and must give an answer."""
    token = _end.set(math.inf)
    try:
        yield
    finally:
        _end.reset(token)


def seconds_left() -> float:
    """How many seconds are left; infinitely many where nobody set a limit, none or less when the time is over."""
    return _end.get() - monotonic()


def refuse_late() -> None:
    """Raise an `OutOfTimeError` if the time is over: for methods that have nothing to show before they end."""
    late = -seconds_left()
    if late > 0:
        raise OutOfTimeError(f"The time that was given is over, {late:.3g} s ago; give more, or a cheaper method.")
