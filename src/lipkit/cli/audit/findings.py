"""The findings of an audit: mismatches, what could not be proven, remarks, and what holds."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from lipkit.errors import BrokenCertificateError, LipkitError

_SEED = re.compile(r"seed \d+")


@final
@dataclass
class Findings:
    """Sentences in the order in which they were found.

    `mismatches` name a file, what it says and what was recomputed. `unproven` are claims that fresh draws do not prove;
    `skipped` say what was not looked at, and `holds` what was confirmed.
    """

    mismatches: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    # Told of everything that is confirmed, as it comes.
    say: Callable[[str], None] = lambda _: None

    def differ(self, file: object, what: str, says: object, found: object, remedy: str) -> None:
        """Note that a file says something else about `what` than was recomputed."""
        self.mismatches.append(f"{file}: {what} is {_short(says)} there, and {_short(found)} recomputed; {remedy}.")

    def refuse(self, file: object, why: object) -> None:
        """Note that a file is missing, damaged or cannot belong to the run, for a reason that is a sentence."""
        said = str(why)
        self.mismatches.append(said if str(file) in said else f"{file}: {said}")

    def confirm(self, sentence: str) -> None:
        """Note something that holds."""
        self.holds.append(sentence)
        self.say(sentence)

    @contextmanager
    def reading(self, file: object) -> Iterator[None]:
        """Within this block an error of lipkit is a mismatch of the file, and ends the block."""
        try:
            yield
        except BrokenCertificateError:
            raise
        except LipkitError as error:
            self.refuse(file, error)
        except OSError as error:
            self.refuse(
                file, f"{file} cannot be read ({error.strerror}); a run leaves such a file: run its command again."
            )


def find_differences(
    stored: Any, found: Any, rtol: float = 0.0, path: str = "", atol: float = 0.0
) -> Iterator[tuple[str, Any, Any]]:
    """(place, stored, found) wherever plain data differ; numbers may by `rtol` of the larger one, or by `atol`."""
    if isinstance(stored, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*stored, *found]):
            place = f"{path}.{key}" if path else str(key)
            yield from find_differences(stored.get(key), found.get(key), rtol, place, atol)
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for i, (a, b) in enumerate(zip(stored, found, strict=True)):
            yield from find_differences(a, b, rtol, f"{path}[{i}]", atol)
    elif not _is_same(stored, found, rtol, atol):
        yield path, stored, found


def _is_same(a: Any, b: Any, rtol: float, atol: float) -> bool:
    if a == b:
        return True
    match a, b:
        case str(), str():
            # Norms that are drawn name their seeds.
            return rtol > 0 and _SEED.sub("", a) == _SEED.sub("", b)
        case (bool(), _) | (_, bool()):
            return False
        case (int() | float(), int() | float()):
            return math.isclose(a, b, rel_tol=rtol, abs_tol=atol)
        case _:
            return False


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
