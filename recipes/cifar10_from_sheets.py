"""CIFAR-10 from lossless sheets of tiles into the published binary files, which every recipe here reads.

    python recipes/cifar10_from_sheets.py --sheets SHEETS --out FOLDER
    lipkit train recipes/cifar10_sll.py --data FOLDER --out runs/sll

SHEETS holds `train-00.webp`, `train-01.webp`, ... and `test-00.webp`, ...: 32 x 32 tiles, 40 to a row, row after row;
`train-labels.npy` and `test-labels.npy`: one unsigned byte for each image; and `meta.json`: for each split the number
of images `n` and `sha256_images_nchw_uint8`, the SHA-256 of all pixels as count x 3 x 32 x 32 bytes. FOLDER gets
`data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`. Needs pillow; takes ten seconds.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

_TILE, _COLUMNS = 32, 40
_FILES = {"train": tuple(f"data_batch_{place}.bin" for place in range(1, 6)), "test": ("test_batch.bin",)}


def convert(sheets: Path, out: Path) -> None:
    """Write the binary files of both splits; a `ValueError` says which sheet or label file is damaged."""
    made: dict[str, bytes] = {}
    for split, names in _FILES.items():
        records = _read_split(sheets, split)
        if len(records) % len(names):
            raise ValueError(f"{len(records)} images of {split} do not divide into {len(names)} equal files.")
        made |= {name: part.tobytes() for name, part in zip(names, np.split(records, len(names)), strict=True)}
    out.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (out / name).write_bytes(content)


def _read_split(folder: Path, split: str) -> np.ndarray:
    """For each image its label and its 3 x 32 x 32 bytes, (count, 3073)."""
    sheets = sorted(folder.glob(f"{split}-[0-9][0-9].webp"))
    if not sheets:
        raise ValueError(f"{folder} has no {split}-00.webp; name the folder of the sheets.")
    images = np.concatenate([_cut_tiles(sheet) for sheet in sheets])
    labels = np.load(folder / f"{split}-labels.npy", allow_pickle=False)
    if labels.dtype != np.uint8 or labels.shape != (len(images),):
        raise ValueError(
            f"{split}-labels.npy has shape {labels.shape} and type {labels.dtype}, expected ({len(images)},) and uint8."
        )
    stated = json.loads((folder / "meta.json").read_text(encoding="utf-8"))[split]
    found = len(images), hashlib.sha256(images.tobytes()).hexdigest()
    if found != (expected := (stated["n"], stated["sha256_images_nchw_uint8"])):
        raise ValueError(
            f"{folder / split}-*.webp hold {found[0]} images of SHA-256 {found[1]}, but meta.json states {expected[0]} "
            f"of {expected[1]}; get the sheets again."
        )
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)


def _cut_tiles(sheet: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(sheet, formats=("WEBP",)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{sheet} is no intact WebP picture ({error}); get it again.") from error
    height, width, _ = pixels.shape
    if width != _COLUMNS * _TILE or height % _TILE:
        raise ValueError(
            f"{sheet} has {width} x {height} pixels, expected a width of {_COLUMNS * _TILE} and a height divisible by "
            f"{_TILE}."
        )
    tiles = pixels.reshape(height // _TILE, _TILE, _COLUMNS, _TILE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(-1, 3, _TILE, _TILE)


def main() -> int:
    """Convert what the command line names; 1 with one sentence for files that cannot be converted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sheets", type=Path, required=True, help="folder of the sheets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the binary files, made if missing")
    options = parser.parse_args()
    try:
        convert(options.sheets, options.out)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{options.sheets} cannot be converted: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
