"""Fields of a recipe from words on a command line."""

import dataclasses
import difflib
import enum
import math
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lipkit.cli.training.recipe import Recipe
from lipkit.errors import ArgumentError

R = TypeVar("R", bound=Recipe)


def make_recipe(kind: type[R], words: Sequence[str]) -> R:
    """The recipe with the fields that `--key=value` words name; anything else is refused before anything runs."""
    return kind(**parse_fields(kind, words))


def make_quick_recipe(kind: type[Recipe], words: Sequence[str]) -> Recipe:
    """The small version of a recipe, but for the fields that words name."""
    return dataclasses.replace(make_recipe(kind, words).quick(), **parse_fields(kind, words))


def parse_fields(kind: type[Recipe], words: Sequence[str]) -> dict[str, Any]:
    """The fields that `--key=value` words name, with their values."""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.removeprefix("--").partition("=")
        name = key.replace("-", "_")
        if not word.startswith("--") or not equals:
            raise ArgumentError(f"{word!r} is no setting; write --key=value, with one of {', '.join(fields)}.")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}."
            raise ArgumentError(f"{kind.__name__} has no field {name}; {hint}")
        if name in values:
            raise ArgumentError(f"--{key} is given twice; give it once.")
        values[name] = parse_value(name, text, hints[name])
    return values


def parse_value(name: str, text: str, hint: Any) -> Any:
    """The value of a field of type `hint` that `text` spells."""
    options = [part for part in typing.get_args(hint) if part is not types.NoneType]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if text.lower() == "none" and len(options) < len(typing.get_args(hint)):
            return None
        if len(options) == 1:
            return parse_value(name, text, options[0])
    if typing.get_origin(hint) is tuple:
        return _tuple(name, text, typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        known = {str(member.value).lower(): member for member in hint}
        if text.lower() not in known:
            raise ArgumentError(f"{name} is one of {', '.join(known)}, got {text!r}.")
        return known[text.lower()]
    if hint not in _SCALARS:
        raise ArgumentError(f"{name} cannot be set from the command line; change it in the recipe's file.")
    what, convert = _SCALARS[hint]
    try:
        return convert(text)
    except (ValueError, KeyError):
        raise ArgumentError(f"{name} is {what}, got {text!r}.") from None


def _tuple(name: str, text: str, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values with commas between them: any number of one type, or exactly one of each type."""
    parts = text.removesuffix(",").split(",") if text else []
    if hints[1:] == (...,):
        hints = hints[:1] * len(parts)
    if len(parts) != len(hints):
        raise ArgumentError(f"{name} has {len(hints)} values with commas between them, got {len(parts)} in {text!r}.")
    return tuple(parse_value(name, part, hint) for part, hint in zip(parts, hints, strict=True))


def _number(text: str) -> float:
    found = float(text)
    if math.isnan(found):
        raise ValueError
    return found


_SCALARS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", _number),
    str: ("a word", str),
    Path: ("a path", Path),
}
