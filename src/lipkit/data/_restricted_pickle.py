"""Pickles of plain data from files that are not trusted: nothing that a pickle names is imported or called."""

import io
import math
import pickle
import struct
from typing import Any, final

import numpy as np
from jaxtyping import UInt8

from lipkit.errors import RecordError


@final
class _Note:
    """Stands for whatever a pickle names: holds what it would be called with and its state, and does nothing."""

    arguments: tuple[object, ...] = ()
    state: Any = None

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Written in Python: the one in C reserves as much memory as a damaged file asks for.
@final
class _Unpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue, reportUntypedBaseClass]
    # Without byte arrays, the one instruction that reserves memory before it reads.
    dispatch = {  # noqa: RUF012 - the base class reads it
        code: load
        for code, load in pickle._Unpickler.dispatch.items()  # pyright: ignore[reportAttributeAccessIssue]
        if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        return _Note


def load_plain(place: str, data: bytes) -> dict[str, object]:
    """The dictionary in a pickle of whole numbers, text, lists and byte arrays; `place` names it in errors.

    Keys that are bytes become text. Arrays are read by `byte_array`. Cost: one pass, a fraction of a second for 30 MB.
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
        text = _as_text(key)
        if not isinstance(text, str):
            raise RecordError(f"{place} has the key {key!r}, expected text; get it again from its source.")
        if text in texts:
            raise RecordError(f"{place} has the key {text} twice, as text and as bytes; get it again from its source.")
        texts[text] = value
    return texts


def byte_array(place: str, value: object) -> UInt8[np.ndarray, "..."]:
    """The array of unsigned bytes, in the order of C, that a pickle describes."""
    match value.state if isinstance(value, _Note) else None:
        case (_, tuple(shape), _Note(arguments=("u1" | b"u1", *_)), False | 0, stored) if all(
            isinstance(length, int) and length >= 0 for length in shape
        ):
            text = _as_text(stored)
            # Characters that are no bytes are left out, so their text is too short.
            content = text.encode("latin-1", "ignore") if isinstance(text, str) else b""
            if len(content) == math.prod(shape):
                return np.frombuffer(content, np.uint8).reshape(shape)
        case _:
            pass
    raise RecordError(f"{place} is not an array of unsigned bytes with as many values as its shape says.")


def _as_text(value: object) -> object:
    """Bytes as text with one character each, also where an old protocol calls `_codecs.encode(text, "latin1")`."""
    match value:
        case bytes():
            return value.decode("latin-1")
        case _Note(arguments=(str() as text, "latin1")):
            return text
        case _:
            return value
