"""Locks of the operating system on open files: they end with the process, however that ends, and leave no file."""

import sys

from lipkit.errors import RecordError


def has_locks() -> bool:
    """Whether this system has such locks; Windows has none."""
    return sys.platform != "win32"


def take_lock(handle: int, busy: str, impossible: str) -> None:
    """Lock an open file or folder for this process alone, until the handle is closed.

    Args:
        handle: The descriptor; on a system without locks nothing is done.
        busy: The message of the `RecordError` if another process holds the lock.
        impossible: Its message if the file system has no locks; `{}` stands for the reason.
    """
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RecordError(busy) from error
    except OSError as error:
        raise RecordError(impossible.format(error.strerror)) from error
