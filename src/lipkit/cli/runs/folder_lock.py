"""A lock on the folder of a run, so that two runs do not write into it at once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lipkit._locks import has_locks, take_lock


@contextmanager
def lock_folder(folder: Path, leads: bool) -> Iterator[None]:
    """Hold the lock of an existing folder; a `RecordError` where another process holds it.

    The lock is the operating system's, on the folder itself: it ends with the process, however that ends, and leaves
    no file. Windows has no such lock, and there nothing is checked.

    Args:
        folder: The folder of `--out`.
        leads: Whether this process writes the files; the others of a distributed run take no lock.
    """
    if not leads or not has_locks():
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        take_lock(
            handle,
            f"{folder} is in use by another run; wait until that has ended, or give another --out.",
            f"{folder} cannot be locked ({{}}); give an --out on another file system.",
        )
        yield
    finally:
        os.close(handle)
