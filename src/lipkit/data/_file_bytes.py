"""Bytes of a file or of a named file in a folder or an archive, unpacked, and errors that name the file."""

import hashlib
import tarfile
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from gzip import BadGzipFile, GzipFile
from io import BytesIO
from pathlib import Path
from typing import final

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


@final
@dataclass(frozen=True)
class Folder:
    """Files right in a folder."""

    path: Path

    def place(self, name: str) -> str:
        """The name of the file in errors."""
        return str(self.path / name)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """The bytes of the file."""
        if not self.has(name):
            raise ArgumentError(f"{self.path} has no file {name}, though it has others of the set; get it again.")
        return read_unpacked(self.path / name)


# Not `slots`, not compared: it keeps what it has unpacked.
@final
@dataclass(frozen=True, eq=False)
class Archive:
    """Files below one folder of a .tar.gz, which is unpacked in memory once and checked as a whole by its CRC."""

    path: Path
    folder: str = field(kw_only=True)

    @cached_property
    def _tar(self) -> tarfile.TarFile:
        data = read_unpacked(self.path)
        try:
            return tarfile.open(fileobj=BytesIO(data), mode="r:")
        except tarfile.TarError as error:
            raise RecordError(f"{self.path} is no intact tar archive ({error}); get it again.") from error

    def place(self, name: str) -> str:
        """The name of the file in errors."""
        return f"{self.path}: {self.folder}/{name}"

    def has(self, name: str) -> bool:
        """Whether there is an archive, in which a file of this name may be."""
        return self.path.is_file()

    def read(self, name: str) -> bytes:
        """The bytes of the file."""
        try:
            file = self._tar.extractfile(f"{self.folder}/{name}")
            if file is None:
                raise RecordError(f"{self.place(name)} is no plain file in the archive.")
            return file.read()
        except KeyError as error:
            raise RecordError(f"{self.path} has no {self.folder}/{name}; get the archive again.") from error
        except tarfile.TarError as error:
            raise RecordError(f"{self.path} is no intact tar archive ({error}); get it again.") from error


# Where files are read from by name.
Store = Folder | Archive
