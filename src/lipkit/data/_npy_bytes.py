"""Arrays in NumPy's own format, from bytes that are not trusted: no pickles, no sizes taken on faith."""

import math
import tokenize
from io import BytesIO

import numpy as np

from lipkit.errors import RecordError


def parse_npy(place: str, data: bytes) -> np.ndarray:
    """The array in the bytes of an .npy file; `place` names it in errors.

    `np.load` would reserve whatever a damaged header asks for, and leave bytes behind the array unread.
    """
    stream = BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = read_header(stream)
    # The header is the text of a Python literal; damaged, it fails in the ways Python's parser does, and where warnings
    # are errors, in one more.
    except (
        *(ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError),
        DeprecationWarning,
    ) as error:
        raise RecordError(f"{place} is no readable .npy array ({error}); get it again from its source.") from error
    if dtype.kind not in "biuf":
        raise RecordError(f"{place} holds values of type {dtype}, expected numbers; convert them first.")
    body = data[stream.tell() :]
    if min(shape, default=0) < 0 or len(body) != (expected := math.prod(shape) * dtype.itemsize):
        raise RecordError(
            f"{place} has {len(body)} bytes after its header, expected {shape} values of type {dtype}; "
            "get it again from its source."
        )
    return np.frombuffer(body, dtype, count=expected // dtype.itemsize).reshape(shape, order="F" if by_columns else "C")
