"""Arrays in NumPy's own format, from bytes that are not trusted: no pickles, no sizes taken on faith."""

import math
import tokenize
from io import BufferedIOBase, BytesIO

import numpy as np

from lipkit.errors import RecordError

# Bytes of one array that are read at most: more than any data set here, and less than a forged header may ask for.
_LARGEST = 2**34


def check_npy_size(place: str, stream: BufferedIOBase, size: int) -> None:
    """Refuse an .npy file of `size` bytes whose header asks for another number of bytes, or for more than 16 GiB.

    `np.load` would reserve whatever a forged or damaged header asks for. `place` names the array in errors.
    """
    shape, _, dtype, start = _read_header(place, stream)
    # Pickled objects have no size; `np.load` refuses them before it reserves anything.
    if dtype.hasobject:
        return
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size - start != expected:
        raise RecordError(
            f"{place} has {size - start} bytes after its header, expected {shape} values of type {dtype}; "
            "get it again from its source."
        )
    if expected > _LARGEST:
        raise RecordError(f"{place} has {expected} bytes, and at most {_LARGEST} are read; give a part of it.")


def parse_npy(place: str, data: bytes) -> np.ndarray:
    """The array in the bytes of an .npy file; `place` names it in errors.

    `np.load` would reserve whatever a damaged header asks for, and leave bytes behind the array unread.
    """
    shape, by_columns, dtype, start = _read_header(place, BytesIO(data))
    if dtype.kind not in "biuf":
        raise RecordError(f"{place} holds values of type {dtype}, expected numbers; convert them first.")
    body = data[start:]
    if min(shape, default=0) < 0 or len(body) != (expected := math.prod(shape) * dtype.itemsize):
        raise RecordError(
            f"{place} has {len(body)} bytes after its header, expected {shape} values of type {dtype}; "
            "get it again from its source."
        )
    return np.frombuffer(body, dtype, count=expected // dtype.itemsize).reshape(shape, order="F" if by_columns else "C")


def _read_header(place: str, stream: BufferedIOBase) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether columns come first, type, and where the values begin."""
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        return (*read_header(stream), stream.tell())
    # The header is the text of a Python literal; damaged, it fails in the ways Python's parser does, and where warnings
    # are errors, in one more.
    except (
        *(ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError),
        DeprecationWarning,
    ) as error:
        raise RecordError(f"{place} is no readable .npy array ({error}); get it again from its source.") from error
