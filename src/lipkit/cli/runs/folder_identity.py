"""The run that a folder belongs to, in its run.json: the same run continues, any other is refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit._files import write_whole
from lipkit.errors import ArgumentError, RecordError

_NAME = "run.json"


@final
@dataclass(frozen=True)
class Identity:
    """The run of a folder: the recipe's class, "" for a model given as it is; a hash of its code; all settings."""

    recipe: str
    source: str
    fields: Mapping[str, str]
    command: str

    def check(self, folder: Path) -> None:
        """Make the folder, and refuse one that holds another run.

        Where, how fast and by what words (the command) may differ.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"--out {folder} cannot be made a folder ({error.strerror}); name another.") from error
        path = folder / _NAME
        if path.exists() and (what := self._differs(path)):
            raise RecordError(f"{folder} holds another run ({what}); continue that one, or give another --out.")

    def settle(self, folder: Path, writes: bool) -> None:
        """`check`, and write down what is done in the folder if this process `writes`. Cost: one small file."""
        self.check(folder)
        path = folder / _NAME
        if writes and not path.exists():
            known = {"recipe": self.recipe, "source": self.source, "fields": dict(self.fields)}
            write_whole(path, json.dumps({**known, "command": self.command}, indent=1).encode())

    def _differs(self, path: Path) -> str:
        """The settings in which the folder's run differs, "" if it does not."""
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            fields = dict(known["fields"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path} is damaged; give another --out, or remove the folder.") from error
        if known.get("recipe") != self.recipe:
            before = known.get("recipe")
            return f"recipe was {before}" if before else "a model as it was given, by no recipe"
        changed = sorted(
            name for name in fields.keys() | self.fields.keys() if fields.get(name) != self.fields.get(name)
        )
        if not changed and known.get("source") != self.source:
            return f"the code of the {'recipe' if self.recipe else 'model'} was another"
        return ", ".join(f"{name} was {fields.get(name)}" for name in changed)


def command_in(folder: Path) -> str:
    """The command that a folder was begun with, "" where none is known."""
    try:
        found = json.loads((folder / _NAME).read_text(encoding="utf-8"))["command"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""
