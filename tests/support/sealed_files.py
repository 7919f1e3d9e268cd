"""Files with checksums as a forger treats them: read, changed, and given a checksum that fits again."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lipkit._checksums import from_sealed_json, to_sealed_json


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file, without its checksum."""
    return from_sealed_json(path.read_bytes(), str(path), "")


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file with a checksum that fits."""
    path.write_bytes(to_sealed_json(content, indent=1))


def read_claims(path: Path) -> dict[str, Any]:
    """The content of the result that a page is drawn from, without its checksum; such a file ends with a line."""
    return from_sealed_json(path.read_bytes().removesuffix(b"\n"), str(path), "")


def write_claims(path: Path, content: Mapping[str, Any]) -> None:
    """Such a file with a checksum that fits."""
    path.write_bytes(to_sealed_json(content) + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of lines, without their checksums."""
    return [from_sealed_json(line, str(path), "") for line in path.read_bytes().splitlines()]


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """A file of lines with checksums that fit."""
    path.write_bytes(b"".join(to_sealed_json(line) + b"\n" for line in lines))
