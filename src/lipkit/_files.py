"""Files that are there whole or not at all."""

import os
import secrets
from pathlib import Path

from lipkit.errors import ArgumentError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, all or nothing: a crash or a full disk on the way leaves what was there before.

    The bytes go to a file beside it, reach the disk, and take the name in one step.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written ({error.strerror}); name another file or free space.") from error
