"""Frozen dataclasses as plain JSON data and back, guided by their annotations; nothing is ever executed."""

import dataclasses
import enum
import inspect
import math
import types
from collections.abc import Callable
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from lipkit.errors import CertificateError, LipkitError

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
T = TypeVar("T")

# The key that holds the name of a class.
_CLASS = "is"


def to_plain(value: object, hint: Any) -> Plain:
    """`value`, annotated as `hint`, as JSON data: dataclasses become objects with their class under "is".

    Numbers, strings, enumerations, tuples, named tuples, optional values and dataclasses of these are covered, and
    refused otherwise. Infinities are written "inf" and "-inf", because JSON has none.
    """
    if _is_union(hint):
        return _first(value, hint, to_plain)
    if get_origin(hint) is tuple and isinstance(value, tuple):
        parts = _parts(hint, len(value), "A tuple")
        return [to_plain(one, part) for one, part in zip(value, parts, strict=True)]
    if hint in (type(None), bool, int, str) and type(value) is hint:
        return value  # pyright: ignore[reportReturnType]
    if hint is float and type(value) in (int, float) and not math.isnan(value):  # pyright: ignore[reportArgumentType]
        return float(value) if math.isfinite(value) else str(float(value))  # pyright: ignore[reportArgumentType]
    if isinstance(hint, type) and isinstance(value, hint):
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, tuple):
            return [to_plain(one, part) for one, part in zip(value, _named(hint), strict=True)]
        if dataclasses.is_dataclass(value) and name_of(type(value)) in known(hint):
            hints = get_type_hints(type(value))
            found = {name: to_plain(getattr(value, name), hints[name]) for name in _fields(type(value))}
            return {_CLASS: name_of(type(value)), **found}
    raise CertificateError(
        f"A certificate cannot record {value!r} as {_said(hint)}; "
        "settings of a method must be numbers, strings, enumerations, tuples or dataclasses of these."
    )


def from_plain(data: Plain, hint: type[T]) -> T:
    """Read what `to_plain` wrote for `hint`; anything else is refused with a sentence that says what was expected."""
    return _read(data, hint)  # pyright: ignore[reportReturnType]


def name_of(value: type | Callable[..., object]) -> str:
    """The name of a class or function in a file: the package of lipkit and its name, or all of its path elsewhere.

    So classes of lipkit may move between files of one package, and what was stored before still finds them.
    """
    module = (value.__module__ or "").split(".")
    place = module[1] if module[0] == "lipkit" and len(module) > 1 else ".".join(module)
    return f"{place}.{value.__qualname__}".lstrip(".")


def known(base: type) -> dict[str, type]:
    """The dataclasses below `base`, itself included, by their names: what a file may ask for in its place."""
    found: dict[str, type] = {}
    for cls in (base, *_below(base)):
        if dataclasses.is_dataclass(cls) and not inspect.isabstract(cls):
            found[name_of(cls)] = cls
    return found


def _read(data: Plain, hint: Any) -> object:
    if _is_union(hint):
        return _first(data, hint, _read)
    if get_origin(hint) is tuple and isinstance(data, list):
        parts = _parts(hint, len(data), "A list")
        return tuple(_read(one, part) for one, part in zip(data, parts, strict=True))
    if hint in (type(None), bool, int, str) and type(data) is hint:
        return data
    if hint is float and (type(data) in (int, float) or data in ("inf", "-inf")):
        return float(data)  # pyright: ignore[reportArgumentType]
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum) and isinstance(data, str) and data in hint.__members__:
            return hint[data]
        if issubclass(hint, tuple) and isinstance(data, list):
            parts = _named(hint)
            if len(parts) != len(data):
                raise CertificateError(f"The certificate has {len(data)} parts where {_said(hint)} has {len(parts)}.")
            return hint(*map(_read, data, parts))  # pyright: ignore[reportArgumentType]
        if isinstance(data, dict):
            return _instance(data, hint)
    raise CertificateError(f"The certificate has {str(data)[:80]!r} where {_said(hint)} is expected.")


def _instance(data: dict[str, Plain], base: type) -> object:
    name = data.get(_CLASS)
    classes = known(base)
    if not isinstance(name, str) or name not in classes:
        raise CertificateError(
            f"The certificate names {str(name)[:80]!r}, which is no {base.__name__} known here; known are "
            f"{', '.join(sorted(classes))}. Import the package that defines it first."
        )
    cls = classes[name]
    given, wanted = {key for key in data if key != _CLASS}, _fields(cls)
    if given != set(wanted):
        differing = ", ".join(sorted(given ^ set(wanted)))
        raise CertificateError(f"The certificate has other fields of {name} than this version of it: {differing}.")
    hints = get_type_hints(cls)
    values = {key: _read(data[key], hints[key]) for key in wanted}
    try:
        return cls(**values)
    except LipkitError as error:
        raise CertificateError(f"The certificate has values that {name} refuses: {error}") from error


def _first(value: Any, hint: Any, convert: Any) -> Any:
    """The value by the first member of a union that takes it; the complaint is the last member's."""
    # A dataclass of a union is told apart by its name, so the order does not matter.
    problem: CertificateError | None = None
    for member in get_args(hint):
        try:
            return convert(value, member)
        except CertificateError as error:
            # An error inside the member that was meant says more than that the others do not fit.
            problem = error if problem is None or isinstance(value, dict) else problem
    raise problem or CertificateError(f"The certificate has nothing to read as {_said(hint)}.")


def _parts(hint: Any, count: int, what: str) -> list[Any]:
    args = get_args(hint)
    if len(args) == 2 and args[1] is Ellipsis:
        return [args[0]] * count
    if len(args) != count:
        raise CertificateError(f"{what} of {count} cannot be {_said(hint)}.")
    return list(args)


def _named(hint: type) -> list[Any]:
    hints = get_type_hints(hint)
    return [hints[name] for name in getattr(hint, "_fields", ())]


def _fields(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls) if f.init]


def _below(base: type) -> list[type]:
    return [cls for direct in base.__subclasses__() for cls in (direct, *_below(direct))]


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _said(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
