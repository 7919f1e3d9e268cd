"""A folder of results: settings, and lines that are appended as they come, complete after any interruption."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._files import write_whole
from lipkit.errors import ArgumentError, RecordError

# What to do about a line that is damaged.
REMEDY = "remove that line to repeat it"
# Characters of a setting that a message shows.
_LONG = 120


@final
class ResultFolder:
    """`settings.json`, and one file of sealed lines for every process that wrote.

    A line is written and reaches the disk before the next one begins. What a kill leaves of a last line is cut off when
    the folder is opened again, so a line is there whole or not at all. Lines under other settings are refused: a table
    mixes nothing. Any number of processes may resume what any other number left.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], writer: int = 0) -> None:
        self.path = Path(folder)
        self._file = self.path / f"samples-{writer:04d}.jsonl"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"{folder} cannot be made a folder for results ({error.strerror}).") from error
        self._settle(json.loads(json.dumps(settings, allow_nan=False)))
        _mend(self._file)

    def _settle(self, settings: Mapping[str, Any]) -> None:
        path = self.path / "settings.json"
        if not path.exists():
            write_whole(path, to_sealed_json(settings, indent=1))
            return
        known = read_settings(self.path)
        changed = sorted(key for key in known.keys() | settings.keys() if known.get(key) != settings.get(key))
        if changed:
            where, was, now = _apart(changed[0], known.get(changed[0]), settings.get(changed[0]))
            raise RecordError(
                f"{self.path} holds results with other settings ({', '.join(changed)}; {where} was {_short(was)}, "
                f"now {_short(now)}); continue with those, or give another folder."
            )

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines of plain data; they are on the disk when this returns."""
        content = b"".join(to_sealed_json(line) + b"\n" for line in lines)
        try:
            with self._file.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"{self._file} cannot be written ({error.strerror}); what it holds is intact: free space and run again."
            ) from error


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings under which the lines of a folder were found."""
    path = folder / "settings.json"
    return from_sealed_json(path.read_bytes(), str(path), "give another folder, or remove this one")


def read_lines(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, data) of every line of every process; one that does not fit its checksum is refused."""
    for path in sorted(folder.glob("samples-*.jsonl")):
        # Another process may be at work on its last line, or was killed there.
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            where = f"{path}, line {number}"
            yield where, from_sealed_json(line, where, REMEDY)


def _apart(where: str, was: object, now: object) -> tuple[str, object, object]:
    """The first place at which two settings differ, and what is there."""
    if not (isinstance(was, Mapping) and isinstance(now, Mapping)):
        return where, was, now
    first = next(key for key in {**was, **now} if key not in was or key not in now or was[key] != now[key])
    return _apart(f"{where} {first}", was.get(first), now.get(first))


def _short(value: object) -> str:
    """A setting in a message: constants of all pairs of a hundred classes have ten thousand numbers."""
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _mend(path: Path) -> None:
    """Cut off a last line that was not finished."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
