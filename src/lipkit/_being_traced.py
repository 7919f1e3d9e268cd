"""Whether a model is being read by `lipkit.trace`, which executes what it reads as torch does without a compiler."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_READING: ContextVar[bool] = ContextVar("_READING", default=False)


@contextmanager
def reading() -> Iterator[None]:
    """Within this block models are exported in order to be read, not to be compiled."""
    token = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(token)


def is_reading() -> bool:
    """Whether this is such a block."""
    return _READING.get()


# Compilers cannot read it and need not: they are never at work in such a block. The mark is explained in
# lipkit.nn.core.precision.
is_reading.__dict__["_dynamo_marked_constant"] = True
