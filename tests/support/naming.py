"""Loops over cases inside one test: cheaper than a test for each, and a failure says which one it is."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(*parts: object) -> Iterator[None]:
    """Failures inside the block begin with the names of the case."""
    try:
        yield
    except AssertionError as failure:
        raise AssertionError(f"{', '.join(map(str, parts))}: {failure}") from failure
