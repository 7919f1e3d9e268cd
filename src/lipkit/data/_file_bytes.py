"""Bytes of a file, unpacked where they are packed, and errors that name the file."""

import hashlib
import zlib
from gzip import BadGzipFile, GzipFile
from io import BytesIO
from pathlib import Path

from lipkit.errors import ArgumentError, RecordError

# The largest set read here is CIFAR with 180 MB; a damaged stream could otherwise grow a thousandfold.
LARGEST = 2**30
_CHUNK = 2**20


def read_unpacked(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz; an error names the file."""
    data = read_bytes(path)
    return _unpack(path, data) if path.suffix == ".gz" else data


def read_bytes(path: Path) -> bytes:
    """The bytes of a file as they are; an error names the file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error


def _unpack(path: Path, data: bytes) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        with GzipFile(fileobj=BytesIO(data)) as stream:
            while piece := stream.read(_CHUNK):
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST:
                    raise RecordError(f"{path} unpacks to more than {LARGEST} bytes, which no set read here has.")
    # gzip checks a length and a CRC at the end of its stream: cut and changed files end here.
    except (BadGzipFile, EOFError, zlib.error) as error:
        raise RecordError(
            f"{path} is no intact gzip file of {len(data)} bytes ({error}); get it again from its source."
        ) from error
    return b"".join(pieces)


def demand_original(place: str, data: bytes, sha256: str) -> None:
    """Refuse content that is not the published one."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise RecordError(
            f"{place} is not the original: its content has SHA-256 {found}, expected {sha256}; "
            "get it again from its source, or read it with official=False if it is meant to differ."
        )
