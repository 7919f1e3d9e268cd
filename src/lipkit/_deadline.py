"""When a call must end: set once at the outside, asked by everything inside that takes long."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

import torch

from lipkit.errors import OutOfTimeError

# Multiplications from which on a step is predicted before it is begun: some hundredths of a second.
_MANY = 2.0**30
# The side of the matrices whose product is timed.
_SIDE = 256

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


def refuse_late(grace: float = 0.0) -> None:
    """Raise an `OutOfTimeError` if the time is over, for `grace` seconds or more.

    For methods that have nothing to show before they end.
    """
    late = -seconds_left()
    if late > grace:
        raise OutOfTimeError(f"The time that was given is over, {late:.3g} s ago; give more, or a cheaper method.")


def refuse_long(multiplications: float, device: torch.device) -> None:
    """Raise an `OutOfTimeError` if so many multiplications of matrices take longer than there is time.

    For steps that cannot be interrupted. Guarantee: none, it is a prediction. Cost: two products of small matrices,
    and nothing for short steps or where nobody set a limit.
    """
    refuse_late()
    left = seconds_left()
    if left == math.inf or multiplications < _MANY:
        return
    needed = multiplications * seconds_per_multiplication(device)
    if needed > left:
        raise OutOfTimeError(f"The next step takes about {needed:.3g} s, {left:.3g} s are left; give more time.")


def seconds_per_multiplication(device: torch.device) -> float:
    """How long one multiplication takes inside of a product of float64 matrices, measured on this machine now."""
    one = torch.ones(_SIDE, _SIDE, dtype=torch.float64, device=device)
    return fastest_seconds(lambda: (one @ one).sum().item()) / _SIDE**3


def fastest_seconds(run: Callable[[], object]) -> float:
    """Seconds of the second of two runs: the first one may have to prepare something."""
    run()
    started = monotonic()
    run()
    return monotonic() - started
