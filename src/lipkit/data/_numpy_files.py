"""Arrays from NumPy's .npy and .npz files that are not trusted: no pickles, no sizes taken on faith."""

import math
import struct
import tokenize
import zlib
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from lipkit.errors import ArgumentError, RecordError

# Bytes of one array that are read at most: more than any data set here, and less than a forged header may ask for.
_LARGEST = 2**34


def parse_npy(place: str, data: bytes) -> np.ndarray:
    """The array in the bytes of an .npy file; `place` names it in errors.

    `np.load` would reserve whatever a damaged header asks for, and leave bytes behind the array unread.
    """
    shape, by_columns, dtype, start = _read_header(place, data)
    if dtype.kind not in "biuf":
        raise RecordError(f"{place} holds values of type {dtype}, expected numbers; convert them first.")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or len(data) - start != count * dtype.itemsize:
        raise RecordError(
            f"{place} has {len(data) - start} bytes after its header, expected {shape} values of type {dtype}; "
            "get it again from its source."
        )
    return np.frombuffer(data, dtype, count, start).reshape(shape, order="F" if by_columns else "C")


def read_npz(path: Path, names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """The arrays of these names in an .npz file, every byte of which is under the CRC of the archive."""
    members = [f"{name}.npy" for name in names]
    try:
        with ZipFile(path) as archive:
            if missing := set(members) - set(archive.namelist()):
                raise RecordError(f"{path} has no {', '.join(sorted(missing))}, only {archive.namelist()[:5]}.")
            for one in map(archive.getinfo, members):
                if one.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                    raise RecordError(f"{path} has {one.filename} packed in a way that NumPy does not write.")
                if one.file_size > _LARGEST:
                    raise RecordError(
                        f"{path}: {one.filename} has {one.file_size} bytes, and at most {_LARGEST} are read; "
                        "give a part of it."
                    )
            contents = [archive.read(name) for name in members]
    except RecordError:
        raise
    # A changed flag is reported by RuntimeError (encrypted) or its kin NotImplementedError.
    except (BadZipFile, EOFError, zlib.error, struct.error, RuntimeError, ValueError) as error:
        raise RecordError(f"{path} is no intact .npz file ({error}); get it again from its source.") from error
    except OSError as error:
        # zipfile seeks where a damaged directory points to, which may be no place at all.
        raise ArgumentError(f"{path} cannot be read ({error.strerror}); check the path and the file.") from error
    return tuple(parse_npy(f"{path}: {name}", data) for name, data in zip(members, contents, strict=True))


def _read_header(place: str, data: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether columns come first, type, and where the values begin."""
    stream = BytesIO(data)
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
