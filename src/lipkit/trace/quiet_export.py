"""Quiet exports: torch says what is wrong in many lines, and lipkit in one."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def unlogged() -> Iterator[None]:
    """What torch logs and prints on the way is kept back, so that a failure is one sentence and not the last of many.

    Without a failure, what was printed (by the model, then) is printed after all.
    """
    names = ["torch", *(name for name in logging.root.manager.loggerDict if name.startswith("torch."))]
    handlers = {id(handler): handler for name in names for handler in logging.getLogger(name).handlers}.values()
    printed = io.StringIO()
    try:
        for handler in handlers:
            handler.addFilter(_nothing)
        with redirect_stderr(printed):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)
    sys.stderr.write(printed.getvalue())


def _nothing(record: logging.LogRecord) -> bool:
    del record
    return False
