"""Named files, in a folder or in a packed archive of it."""

import tarfile
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import final

from lipkit.data._file_bytes import read_unpacked
from lipkit.errors import ArgumentError, RecordError


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
