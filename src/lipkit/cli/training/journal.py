"""The journal of a run: one line of JSON for each entry, appended, and cut back when a run is resumed."""

import json
import os
from pathlib import Path
from typing import Any

from lipkit._files import write_whole
from lipkit.errors import RecordError


class Journal:
    """A file of entries, each with its `step`, in increasing order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """The entries; what a kill left of a last line is not one."""
        if not self._path.exists():
            return []
        try:
            text = self._path.read_text(encoding="utf-8")
            entries = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
            if not all(isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in entries):
                raise ValueError("a line is no entry with its step")
            return entries
        except ValueError as error:
            raise RecordError(f"{self._path} is damaged ({error}); remove it to go on without its history.") from error

    def rewind(self, step: int) -> None:
        """Forget entries after `step`: they will be written again."""
        # Before the first step there is nothing to keep, so nothing need be readable.
        kept = [entry for entry in self.read() if entry["step"] <= step] if step else []
        write_whole(self._path, "".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def add(self, entry: dict[str, Any]) -> None:
        """Append an entry of finite numbers; it is on the disk when this returns."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"{self._path} cannot be written ({error.strerror}); the last checkpoint is intact: free space and "
                "run the same command again."
            ) from error
