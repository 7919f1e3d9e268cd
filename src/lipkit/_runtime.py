"""How a call runs: in which mode, by which draws, until when, and who hears how far it is.

All of it is set once at the outside, and asked by everything inside.
"""

import enum
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import final

import torch
from torch import nn

from lipkit._compilers import constant_for_compilers
from lipkit.errors import ArgumentError, OutOfTimeError

# Multiplications from which on a step is predicted before it is begun: some hundredths of a second.
_MANY = 2.0**30
# The side of the matrices whose product is timed.
_SIDE = 256

_READING: ContextVar[bool] = ContextVar("_READING", default=False)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; the mode of every submodule is put back, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def without_casts() -> Iterator[None]:
    """No automatic casts to half precision: weights that are computed from others are those of the model's dtype."""
    on_gpu = torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else nullcontext()
    with torch.autocast("cpu", enabled=False), on_gpu:
        yield


@contextmanager
def reading() -> Iterator[None]:
    """Within this block `lipkit.trace` exports models in order to read them, not to compile them."""
    token = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(token)


# Compilers are never at work in such a block.
@constant_for_compilers
def is_reading() -> bool:
    """Whether `lipkit.trace` reads the model: what it reads is executed as torch does without a compiler."""
    return _READING.get()


# Everyone who takes notes of draws, and what is left of draws that are repeated.
_notes: ContextVar[tuple[list[int], ...]] = ContextVar("notes", default=())
_repeated: ContextVar[Iterator[int] | None] = ContextVar("repeated", default=None)


def draw() -> int:
    """128 bits that nobody could know before: the start of a proof by chance. Inside `replaying`, recorded ones."""
    repeated = _repeated.get()
    found = secrets.randbits(128) if repeated is None else next(repeated, None)
    # A replay that asks for more than was recorded is none; its number will not be the recorded one.
    found = secrets.randbits(128) if found is None else found
    for note in _notes.get():
        note.append(found)
    return found


@contextmanager
def recording() -> Iterator[list[int]]:
    """A list of everything that is drawn inside, in order. Recordings may lie inside of each other."""
    note: list[int] = []
    token = _notes.set((*_notes.get(), note))
    try:
        yield note
    finally:
        _notes.reset(token)


@contextmanager
def replaying(draws: Sequence[int]) -> Iterator[None]:
    """Repeat recorded draws in order. What comes out proves nothing: the record can be chosen after the fact."""
    token = _repeated.set(iter(draws))
    try:
        yield
    finally:
        _repeated.reset(token)


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


@final
class Phase(enum.Enum):
    """The parts of a call that bounds a model; the value is how a part is said."""

    CAPTURE = "capturing the model"
    BOUND = "bounding"
    LOWER = "searching for a lower bound"


@final
@dataclass(frozen=True)
class Progress:
    """A part of a call that begins: its phase, its method if there is one, and the seconds left, perhaps without end.

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
    if listener is None:
        return
    # A listener that bounds something itself hears nothing of that: it would be called without end.
    token = _listener.set(None)
    try:
        listener(Progress(phase, rung, seconds_left()))
    finally:
        _listener.reset(token)
