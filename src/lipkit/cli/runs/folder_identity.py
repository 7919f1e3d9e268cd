"""The run that a folder belongs to, in its run.json: the same run continues, any other is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit._checksums import from_sealed_json, to_sealed_json
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
        if (folder / _NAME).exists() and (what := self._differs(Identity.read(folder))):
            raise RecordError(f"{folder} holds another run ({what}); continue that one, or give another --out.")

    def settle(self, folder: Path, writes: bool) -> None:
        """`check`, and write down what is done in the folder if this process `writes`. Cost: one small file."""
        self.check(folder)
        path = folder / _NAME
        if writes and not path.exists():
            known = {"recipe": self.recipe, "source": self.source, "fields": dict(self.fields)}
            write_whole(path, to_sealed_json({**known, "command": self.command}, indent=1))

    @classmethod
    def read(cls, folder: Path) -> "Identity":
        """The run that a folder belongs to; a `RecordError` if its run.json is damaged."""
        path, remedy = folder / _NAME, "give another --out, or remove the folder"
        try:
            known = from_sealed_json(path.read_bytes(), str(path), remedy)
            return cls(known["recipe"], known["source"], dict(known["fields"]), known["command"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"{path} does not say what the folder holds; {remedy}.") from error

    def _differs(self, other: "Identity") -> str:
        """The settings in which another run differs, "" if it does not."""
        if other.recipe != self.recipe:
            return f"recipe was {other.recipe}" if other.recipe else "a model as it was given, by no recipe"
        names = sorted(other.fields.keys() | self.fields.keys())
        changed = [name for name in names if other.fields.get(name) != self.fields.get(name)]
        if not changed and other.source != self.source:
            return f"the code of the {'recipe' if self.recipe else 'model'} was another"
        return ", ".join(f"{name} was {other.fields.get(name)}" for name in changed)


def command_in(folder: Path) -> str:
    """The command that a folder was begun with, "" where none is known."""
    try:
        return Identity.read(folder).command
    except RecordError:
        return ""
