"""Ctrl-C and SIGTERM as a question that a loop asks when it can be stopped."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came; a second one acts at once."""
    came: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, before[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
