"""A lock on the folder of a run, so that two runs do not write into it at once."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lipkit.errors import RecordError


@contextmanager
def lock_folder(folder: Path, leads: bool) -> Iterator[None]:
    """Hold the lock of an existing folder; a `RecordError` where another process holds it.

    The lock is the operating system's, on the folder itself: it ends with the process, however that ends, and leaves
    no file. Windows has no such lock, and there nothing is checked.

    Args:
        folder: The folder of `--out`.
        leads: Whether this process writes the files; the others of a distributed run take no lock.
    """
    if not leads or sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RecordError(
                f"{folder} is in use by another run; wait until that has ended, or give another --out."
            ) from error
        except OSError as error:
            raise RecordError(
                f"{folder} cannot be locked ({error.strerror}); give an --out on another file system."
            ) from error
        yield
    finally:
        os.close(handle)
