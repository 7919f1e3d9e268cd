"""The journal of a run: one line of JSON for each entry, appended, and cut back when a run is resumed."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._files import write_whole
from lipkit.errors import ArgumentError, RecordError


class Journal:
    """A file of entries, each with its `step`, in increasing order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """The entries; what a kill left of a last line is not one."""
        if not self._path.exists():
            return []
        lines = self._path.read_bytes().split(b"\n")[:-1]
        remedy = "remove the file to go on without its history"
        entries = [from_sealed_json(line, f"{self._path}, line {i}", remedy) for i, line in enumerate(lines, start=1)]
        for number, entry in enumerate(entries, start=1):
            if type(entry.get("step")) is not int:
                raise RecordError(f"{self._path}, line {number} has no step; {remedy}.")
        return entries

    def digest(self) -> str:
        """The SHA-256 of the file, which a checkpoint keeps: the history that belongs to its weights."""
        return hashlib.sha256(self._path.read_bytes()).hexdigest()

    def rewind(self, step: int) -> None:
        """Forget entries after `step`: they will be written again."""
        # Before the first step there is nothing to keep, so nothing need be readable.
        kept = [entry for entry in self.read() if entry["step"] <= step] if step else []
        write_whole(self._path, b"".join(map(_line, kept)))

    def add(self, entry: dict[str, Any]) -> None:
        """Append an entry of finite numbers; it is on the disk when this returns."""
        try:
            with self._path.open("ab") as file:
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"{self._path} cannot be written ({error.strerror}); the last checkpoint is intact: free space and "
                "run the same command again."
            ) from error


def _line(entry: dict[str, Any]) -> bytes:
    return to_sealed_json(entry) + b"\n"


def seconds_in(entries: Sequence[Mapping[str, Any]]) -> float | None:
    """How long the training took, after the last entry; None where a private one does not say so."""
    return entries[-1].get("seconds") if entries else 0.0


@final
class Board:
    """Writes the numbers of every entry of a journal to `folder`; `tensorboard --logdir` shows them while it runs."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as missing:
            raise ArgumentError(
                "--tensorboard needs tensorboard; pip install 'lipkit[logging]' brings it."
            ) from missing
        self._writer = SummaryWriter(str(folder))

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Add an entry; what is not there is left out."""
        for name, value in entry.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, entry["step"])
        self._writer.flush()
