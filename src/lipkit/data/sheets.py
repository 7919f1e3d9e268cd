"""CIFAR-10 as a few large lossless pictures: half the size of the batches, and every picture viewer opens them.

A folder holds `train-00.webp`, `train-01.webp`, ... and `test-00.webp`, ...: 32 x 32 tiles, 40 to a row, row after row;
`train-labels.npy` and `test-labels.npy`: one unsigned byte for each; and `meta.json`: for each split the number of
images `n` and `sha256_images_nchw_uint8`, the SHA-256 of all pixels as count x 3 x 32 x 32 bytes.
"""

import hashlib
import json
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import UInt8

from lipkit.data._file_bytes import content
from lipkit.data._npy_bytes import array_of
from lipkit.errors import ArgumentError, RecordError

_TILE: Final = 32
_COLUMNS: Final = 40


def has_sheets(folder: Path, train: bool) -> bool:
    """Whether the folder is of this kind."""
    return (folder / f"{_split(train)}-00.webp").is_file()


def read_sheets(folder: Path, train: bool) -> UInt8[np.ndarray, "count bytes"]:
    """For each image its label and its 3 x 32 x 32 bytes. Needs the extra `data` (pillow).

    The pixels must have the SHA-256 that `meta.json` states: lossless means nothing is changed.
    """
    split = _split(train)
    sheets = sorted(folder.glob(f"{split}-[0-9][0-9].webp"))
    images = np.concatenate([_tiles(sheet) for sheet in sheets])
    names = folder / f"{split}-labels.npy"
    labels = array_of(str(names), content(names))
    if labels.dtype != np.uint8 or labels.shape != (len(images),):
        raise RecordError(
            f"{names} has shape {labels.shape} and type {labels.dtype}, expected ({len(images)},) and uint8: "
            f"one label for each image of {len(sheets)} sheets."
        )
    count, expected = _stated(folder / "meta.json", split)
    found = hashlib.sha256(images.tobytes()).hexdigest()
    if (len(images), found) != (count, expected):
        raise RecordError(
            f"{folder / split}-*.webp hold {len(images)} images of SHA-256 {found}, but meta.json states {count} of "
            f"{expected}; get the sheets again."
        )
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)


def _split(train: bool) -> str:
    return "train" if train else "test"


def _tiles(sheet: Path) -> UInt8[np.ndarray, "count 3 32 32"]:
    try:
        from PIL import Image
    except ModuleNotFoundError as missing:
        raise ArgumentError(f"Reading {sheet} needs pillow; pip install 'lipkit[data]' brings it.") from missing
    try:
        with Image.open(sheet, formats=("WEBP",)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise RecordError(f"{sheet} is no intact WebP picture ({error}); get it again.") from error
    height, width, _ = pixels.shape
    if width != _COLUMNS * _TILE or height % _TILE:
        raise RecordError(
            f"{sheet} has {width} x {height} pixels, expected a width of {_COLUMNS * _TILE} and a height divisible by "
            f"{_TILE}."
        )
    tiles = pixels.reshape(height // _TILE, _TILE, _COLUMNS, _TILE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(-1, 3, _TILE, _TILE)


def _stated(path: Path, split: str) -> tuple[int, str]:
    data = content(path)
    try:
        match json.loads(data):
            case {**splits} if split in splits:
                match splits[split]:
                    case {"n": int(count), "sha256_images_nchw_uint8": str(sha256)}:
                        return count, sha256
    except ValueError as error:
        raise RecordError(f"{path} is no intact JSON file ({error}); get it again.") from error
    raise RecordError(f"{path} does not state n and sha256_images_nchw_uint8 for {split}; get it again.")
