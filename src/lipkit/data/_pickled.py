"""A pickle read as data: its instructions are followed on plain values, and nothing it names is looked up or called."""

import math
import pickletools
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import UInt8

from lipkit.errors import RecordError


@final
@dataclass(frozen=True)
class _Name:
    """Something a pickle wants imported. Here it stays a name."""

    module: str
    name: str


# Not frozen: a pickle makes an object first and tells its content later.
@final
@dataclass
class _Call:
    """Something a pickle wants called. Here it stays a note of what with."""

    function: _Name
    arguments: tuple[object, ...]
    state: object = None


@final
class _Mark:
    """Where the items of a container begin on the stack."""


_BYTES = _Name("_codecs", "encode")
_ARRAYS = {_Name(module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray")}
_DTYPE = _Name("numpy", "dtype")

_VALUES = {
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BININT", "BININT1", "BININT2"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def unpickled(place: str, data: bytes) -> dict[str, object]:
    """The dictionary in a pickle of numbers, strings, lists and byte arrays; `place` names it in errors.

    Instructions beyond those of such a pickle are refused by name. Strings of Python 2 and bytes as keys become text.
    Cost: one pass, a fraction of a second for 30 MB.
    """
    # Imported names and calls become notes (_Name, _Call), so a hostile file can at worst be refused.
    stack: list[object] = []
    memo: dict[int, object] = {}
    end = 0
    try:
        for code, argument, position in pickletools.genops(data):
            _follow(code.name, argument, stack, memo)
            end = (position or 0) + 1
        (top,) = stack
        if not isinstance(top, dict):
            raise RecordError(f"{place} is a pickle of a {type(top).__name__}, expected a dictionary.")
        if end != len(data):
            raise RecordError(f"{place} has {len(data) - end} bytes after the end of its pickle, expected none.")
        return _texts(place, top)
    except RecordError:
        raise
    # Text of the oldest protocol is decoded before it can be refused, and may warn.
    except (ValueError, IndexError, KeyError, TypeError, DeprecationWarning) as error:
        raise RecordError(
            f"{place} is no intact pickle of plain data ({error}), and others are not executed; "
            "get the file again from its source, or use the binary version of the set."
        ) from error


def _follow(code: str, argument: object, stack: list[object], memo: dict[int, object]) -> None:
    match code:
        case "PROTO" | "FRAME" | "STOP":
            pass
        case "MARK":
            stack.append(_Mark())
        case "BINPUT" | "LONG_BINPUT" if isinstance(argument, int):
            memo[argument] = stack[-1]
        case "MEMOIZE":
            memo[len(memo)] = stack[-1]
        case "BINGET" | "LONG_BINGET" if isinstance(argument, int):
            stack.append(memo[argument])
        case "GLOBAL":
            stack.append(_Name(*str(argument).split(" ")))
        case "STACK_GLOBAL":
            name, module = stack.pop(), stack.pop()
            stack.append(_Name(str(module), str(name)))
        case "TUPLE":
            stack.append(tuple(_marked(stack)))
        case "APPEND":
            item = stack.pop()
            _list(stack).append(item)
        case "APPENDS":
            items = _marked(stack)
            _list(stack).extend(items)
        case "SETITEM":
            value, key = stack.pop(), stack.pop()
            _dict(stack)[key] = value
        case "SETITEMS":
            items = _marked(stack)
            _dict(stack).update(zip(items[::2], items[1::2], strict=True))
        case "REDUCE":
            stack.append(_called(arguments=stack.pop(), function=stack.pop()))
        case "BUILD":
            state, made = stack.pop(), stack[-1]
            if not isinstance(made, _Call):
                raise ValueError(f"a state is given to a {type(made).__name__}")
            made.state = state
        case _ if code in _VALUES:
            stack.append(argument)
        case _ if code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        case _ if code in _EMPTY:
            stack.append(_EMPTY[code]())
        case _ if code in _TUPLES:
            items = [stack.pop() for _ in range(_TUPLES[code])]
            stack.append(tuple(reversed(items)))
        case _:
            raise ValueError(f"the instruction {code}")


def _texts(place: str, found: dict[object, object]) -> dict[str, object]:
    """The same with text as keys."""
    texts: dict[str, object] = {}
    for key, value in found.items():
        text = key.decode() if isinstance(key, bytes) else key
        if not isinstance(text, str):
            raise RecordError(f"{place} has the key {key!r}, expected text; get it again from its source.")
        if text in texts:
            raise RecordError(f"{place} has the key {text} twice, as text and as bytes; get it again from its source.")
        texts[text] = value
    return texts


def _marked(stack: list[object]) -> list[object]:
    items: list[object] = []
    while not isinstance(item := stack.pop(), _Mark):
        items.append(item)
    return items[::-1]


def _list(stack: list[object]) -> list[object]:
    if not isinstance(top := stack[-1], list):
        raise ValueError(f"items are appended to a {type(top).__name__}")
    return top


def _dict(stack: list[object]) -> dict[object, object]:
    if not isinstance(top := stack[-1], dict):
        raise ValueError(f"items are set in a {type(top).__name__}")
    return top


def _called(arguments: object, function: object) -> object:
    if not isinstance(function, _Name) or not isinstance(arguments, tuple):
        raise ValueError(f"a call of {function}")
    # How Python 3 writes bytes in the old protocols.
    if function == _BYTES and len(arguments) == 2 and arguments[1] == "latin1" and isinstance(arguments[0], str):
        return arguments[0].encode("latin-1")
    if function not in _ARRAYS and function != _DTYPE:
        raise ValueError(f"a call of {function.module}.{function.name}")
    return _Call(function, arguments)


def byte_array(place: str, value: object) -> UInt8[np.ndarray, "..."]:
    """The array of unsigned bytes a pickle describes."""
    match value:
        case _Call(function, _, (_, tuple(shape), _Call(_, ("u1" | b"u1", *_)), False | 0, str() | bytes() as raw)) if (
            function in _ARRAYS and all(isinstance(length, int) and length >= 0 for length in shape)
        ):
            # Python 2 had one type for text and bytes; it arrives here as text with one character for each byte.
            data = raw.encode("latin-1") if isinstance(raw, str) else raw
            if len(data) == math.prod(shape):
                return np.frombuffer(data, np.uint8).reshape(shape)
    raise RecordError(f"{place} is not an array of unsigned bytes with as many values as its shape says.")
