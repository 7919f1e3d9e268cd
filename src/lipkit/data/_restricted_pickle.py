"""Pickles of plain data from files that are not trusted: nothing that a pickle names is imported or called."""

import io
import math
import pickle
import pickletools
import struct
from typing import Any, final

import numpy as np
from jaxtyping import UInt8

from lipkit.errors import RecordError


@final
class _Note:
    """Stands for an object that a pickle wants made: holds what it would be made from, and does nothing with it."""

    def __init__(self, *arguments: object) -> None:
        self.arguments, self.state = arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


@final
class _Latin1:
    """Stands for `_codecs.encode(text, "latin1")`, which is how Python 3 writes bytes in the old protocols."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if encoding != "latin1":
            raise ValueError(f"bytes in the encoding {encoding}")
        return text.encode("latin-1")

    # Without it a pickle could set attributes of this class.
    def __setstate__(self, state: object) -> None:
        raise ValueError("a state is given to bytes")


_KNOWN = {
    ("_codecs", "encode"): _Latin1,
    **dict.fromkeys(
        (*((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")), ("numpy", "dtype")), _Note
    ),
    # An argument of `_reconstruct`.
    ("numpy", "ndarray"): _Note,
}
# Everything else that a pickle may say: containers, whole numbers, text, bytes, and the memo.
_INSTRUCTIONS = {
    *("PROTO", "FRAME", "STOP", "MARK", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL"),
    *("STACK_GLOBAL", "REDUCE", "BUILD", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM"),
    *("SETITEMS", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1"),
    *("BININT2", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES"),
    *("BINBYTES", "BINBYTES8"),
}
_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}


class _Instructions(dict[int, Any]):
    def __missing__(self, code: int) -> Any:
        raise ValueError(f"the instruction {_NAMES.get(code, code)}")


# Written in Python: the one in C reserves as much memory as a damaged file asks for.
@final
class _Unpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue, reportUntypedBaseClass]
    dispatch = _Instructions(
        (code, pickle._Unpickler.dispatch[code])  # pyright: ignore[reportAttributeAccessIssue]
        for code, name in _NAMES.items()
        if name in _INSTRUCTIONS
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise ValueError(f"the name {module}.{name}")
        return _KNOWN[module, name]


def load_plain(place: str, data: bytes) -> dict[str, object]:
    """The dictionary in a pickle of whole numbers, text, lists and byte arrays; `place` names it in errors.

    Names and instructions beyond those of such a pickle are refused. Keys that are bytes become text. Arrays are read
    by `byte_array`. Cost: one pass, a fraction of a second for 30 MB.
    """
    stream = io.BytesIO(data)
    try:
        # Python 2 had one type for text and bytes; latin-1 keeps each byte as one character.
        found = _Unpickler(stream, encoding="latin-1").load()
    # The ways in which Python's own reader fails on bytes that are no pickle.
    except (
        *(ValueError, LookupError, TypeError, AttributeError, EOFError, struct.error, pickle.UnpicklingError),
    ) as error:
        raise RecordError(
            f"{place} is no intact pickle of plain data ({error}), and others are not executed; "
            "get the file again from its source, or use the binary version of the set."
        ) from error
    if not isinstance(found, dict):
        raise RecordError(f"{place} is a pickle of a {type(found).__name__}, expected a dictionary.")
    if rest := len(data) - stream.tell():
        raise RecordError(f"{place} has {rest} bytes after the end of its pickle, expected none.")
    texts: dict[str, object] = {}
    for key, value in found.items():
        text = key.decode("latin-1") if isinstance(key, bytes) else key
        if not isinstance(text, str):
            raise RecordError(f"{place} has the key {key!r}, expected text; get it again from its source.")
        if text in texts:
            raise RecordError(f"{place} has the key {text} twice, as text and as bytes; get it again from its source.")
        texts[text] = value
    return texts


def byte_array(place: str, value: object) -> UInt8[np.ndarray, "..."]:
    """The array of unsigned bytes, in the order of C, that a pickle describes."""
    match value.state if isinstance(value, _Note) else None:
        case (_, tuple(shape), _Note(arguments=("u1" | b"u1", *_)), False | 0, str() | bytes() as raw) if all(
            isinstance(length, int) and length >= 0 for length in shape
        ):
            content = raw.encode("latin-1") if isinstance(raw, str) else raw
            if len(content) == math.prod(shape):
                return np.frombuffer(content, np.uint8).reshape(shape)
        case _:
            pass
    raise RecordError(f"{place} is not an array of unsigned bytes with as many values as its shape says.")
