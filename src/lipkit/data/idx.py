"""MNIST and Fashion-MNIST from the folder of their four IDX files."""

import math
import struct
from pathlib import Path
from typing import Final

import numpy as np
import torch
from jaxtyping import UInt8

from lipkit.data._file_bytes import demand_original, read_unpacked
from lipkit.data.class_names import DIGITS, FASHION
from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError, RecordError

_SIDE: Final = 28

# SHA-256 of the files unpacked, so that it does not matter who packed them.
_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION_MNIST = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def mnist(folder: str | Path, train: bool = True, *, official: bool = False) -> Examples:
    """Handwritten digits, (count, 1, 28, 28) pixels in [0, 1]: 60,000 for training, 10,000 for testing.

    Reads `{train,t10k}-images-idx3-ubyte` and `...-labels-idx1-ubyte`, plain or with `.gz`. Headers, sizes and labels
    are checked before anything is returned; with `official` the content must also be the published one (SHA-256),
    which alone notices a changed pixel in a file that is not packed. Reference: LeCun, Cortes, Burges, 1998.

    Args:
        folder: Folder with the four IDX files.
        train: The training images, or those for testing.
        official: Whether the content must be the published one, by its SHA-256.
    """
    return _read("MNIST", Path(folder), train, DIGITS, _MNIST if official else {})


def fashion_mnist(folder: str | Path, train: bool = True, *, official: bool = False) -> Examples:
    """Pictures of clothes in the format of `mnist`, whose words hold here too.

    Reference: Xiao, Rasul, Vollgraf, 2017.
    """
    return _read("Fashion-MNIST", Path(folder), train, FASHION, _FASHION_MNIST if official else {})


def _read(name: str, folder: Path, train: bool, classes: tuple[str, ...], hashes: dict[str, str]) -> Examples:
    split = "train" if train else "t10k"
    pictures = _find(folder, f"{split}-images-idx3-ubyte")
    names = _find(folder, f"{split}-labels-idx1-ubyte")
    pixels = _array(pictures, 3, hashes.get(f"{split}-images-idx3-ubyte"))
    labels = _array(names, 1, hashes.get(f"{split}-labels-idx1-ubyte"))
    if pixels.shape[1:] != (_SIDE, _SIDE):
        height, width = pixels.shape[1:]
        raise RecordError(f"{pictures} holds images of {height} x {width} pixels, expected {_SIDE} x {_SIDE}.")
    if len(pixels) != len(labels):
        raise RecordError(f"{names} has {len(labels)} labels for the {len(pixels)} images of {pictures}.")
    if (largest := int(labels.max())) >= len(classes):
        place = int(labels.argmax())
        raise RecordError(f"{names} has the label {largest} at place {place}, expected 0..{len(classes) - 1}.")
    inputs = torch.from_numpy(pixels.astype(np.float32)).div_(255).unsqueeze(1)
    name = f"{name} {'training' if train else 'test'} set"
    return Examples(inputs, torch.from_numpy(labels.astype(np.int64)), classes, name)


def _find(folder: Path, name: str) -> Path:
    # Some mirrors write a dot before `idx`.
    candidates = [folder / f"{stem}{end}" for end in ("", ".gz") for stem in (name, name.replace("-idx", ".idx"))]
    for path in candidates:
        if path.is_file():
            return path
    raise ArgumentError(
        f"{folder} has no file {name} or {name}.gz; name the folder with the four IDX files, "
        "or get them with lipkit.data.fetch."
    )


def _array(path: Path, axes: int, sha256: str | None) -> UInt8[np.ndarray, "..."]:
    """One IDX file of bytes: two zeros, 8 for unsigned bytes, the number of axes, their lengths, the values."""
    data = read_unpacked(path)
    start = 4 * (1 + axes)
    if len(data) < start:
        raise RecordError(f"{path} has {len(data)} bytes, expected a header of {start}; get it again from its source.")
    magic, *shape = struct.unpack_from(f">{1 + axes}I", data)
    if magic != (wanted := 0x800 + axes):
        raise RecordError(
            f"{path} begins with {magic:#010x}, expected {wanted:#010x} (IDX, unsigned bytes, {axes} axes)."
        )
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise RecordError(
            f"{path} has {len(data)} bytes, but its header ({' x '.join(map(str, shape))}) asks for {expected}; "
            "get it again from its source."
        )
    if not shape[0]:
        raise RecordError(f"{path} holds nothing: its header says 0 items.")
    if sha256 is not None:
        demand_original(str(path), data, sha256)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
